// AVX512 with bf16 dot products. Flags: -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16.
#include "kernels.h"

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include <immintrin.h>

#include <initializer_list>

namespace foredraft {
namespace {

#include "elementwise.h"
#include "matmul.h"

// One accumulator a row and block: 2 * 14 or 4 * 6 of the 32 registers.
struct Wide {
  using Sum = __m512;
  static constexpr int kRows = 14;
  static constexpr int columns(int rows) { return rows <= 6 ? 4 : 2; }
  static void store(float* y, __m512 sum) { _mm512_storeu_ps(y, sum); }
  static __m512i line(const char* at) { return _mm512_loadu_si512(at); }
  static __m512i input(uint32_t bits) { return _mm512_set1_epi32(static_cast<int>(bits)); }
};

struct Bf16 : Wide {
  static __m512 mac(__m512 sum, __m512i w, __m512i x) { return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)x); }
};

struct F32 : Wide {
  static __m512 mac(__m512 sum, __m512i w, __m512i x) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(w), _mm512_castsi512_ps(x), sum);
  }
};

// exp_of's polynomial, fused, for values that are at most 0. Attention over a long text spends its time here: half the
// steps of the portable form.
inline __m512 exp_lanes(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-104.0f), x);  // NaN stays: the second one is taken
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
  const __m512 near = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  const __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), near);
  __m512 p = _mm512_set1_ps(1.9875691500e-4f);
  for (float next : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 0.5f, 1.0f, 1.0f})
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(next));
  return _mm512_scalef_ps(p, n);
}

float softmax_exp_lanes(float* s, size_t n, float max) {
  const __m512 top = _mm512_set1_ps(max);
  __m512 sum = _mm512_setzero_ps();
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const __m512 e = exp_lanes(_mm512_sub_ps(_mm512_loadu_ps(s + i), top));
    _mm512_storeu_ps(s + i, e);
    sum = _mm512_add_ps(sum, e);
  }
  if (const __mmask16 rest = static_cast<__mmask16>((1u << (n - i)) - 1)) {
    const __m512 e = exp_lanes(_mm512_sub_ps(_mm512_maskz_loadu_ps(rest, s + i), top));
    _mm512_mask_storeu_ps(s + i, rest, e);
    sum = _mm512_mask_add_ps(sum, rest, sum, e);
  }
  return _mm512_reduce_add_ps(sum);  // in halves, as sum_lanes
}

const Kernels table = {"avx512", matmul<Bf16>, matmul<F32>, narrow, rms_norm, gate, softmax_exp_lanes,
                       maximum, add, soft_cap};

}  // namespace

const Kernels* kernels_avx512() { return &table; }

}  // namespace foredraft

#else

namespace foredraft {
const Kernels* kernels_avx512() { return nullptr; }
}  // namespace foredraft

#endif
