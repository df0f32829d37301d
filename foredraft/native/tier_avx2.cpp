// AVX2: bf16 widened by a shift, fused multiply-add. Flags: -mavx2 -mfma.
#include "kernels.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

namespace foredraft {
namespace {

#include "elementwise.h"
#include "matmul.h"

// Two registers hold 16 columns; the rows and blocks of a tile leave four of the 16 registers for weights and inputs.
template <class Mac>
struct Half {
  static constexpr int kRows = 4;
  static constexpr int columns(int rows) { return rows <= 2 ? 2 : 1; }

  template <int R, int C, int P>
  static void tile(const char* w, size_t steps, const char* x, size_t ldx, float* y, size_t ldy, size_t ahead) {
    __m256 sum[R][2 * C];
    for (int r = 0; r < R; ++r)
      for (int h = 0; h < 2 * C; ++h) sum[r][h] = _mm256_setzero_ps();
    const size_t block = steps * kLine;
    each_line<C, P>(w, block, ahead, [&](const char* at) {
      Mac::template step<R, C>(sum, at, block, x, ldx);
      x += 4;
    });
    for (int r = 0; r < R; ++r)
      for (int h = 0; h < 2 * C; ++h) _mm256_storeu_ps(y + r * ldy + 8 * h, sum[r][h]);
  }
};

inline __m256i half_line(const char* w, size_t block, int h) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + h / 2 * block + h % 2 * 32));
}

struct Bf16 {
  static __m256 low(__m256i pair) { return _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16)); }
  static __m256 high(__m256i pair) {
    return _mm256_castsi256_ps(_mm256_and_si256(pair, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }

  template <int R, int C>
  static void step(__m256 (&sum)[R][2 * C], const char* w, size_t block, const char* x, size_t ldx) {
    __m256 first[2 * C], second[2 * C];
    for (int h = 0; h < 2 * C; ++h) {
      const __m256i pairs = half_line(w, block, h);
      first[h] = low(pairs);
      second[h] = high(pairs);
    }
    for (int r = 0; r < R; ++r) {
      int32_t pair;
      __builtin_memcpy(&pair, x + r * ldx, sizeof pair);
      const __m256i both = _mm256_set1_epi32(pair);
      const __m256 x0 = low(both), x1 = high(both);
      for (int h = 0; h < 2 * C; ++h) sum[r][h] = _mm256_fmadd_ps(first[h], x0, sum[r][h]);
      for (int h = 0; h < 2 * C; ++h) sum[r][h] = _mm256_fmadd_ps(second[h], x1, sum[r][h]);
    }
  }
};

struct F32 {
  template <int R, int C>
  static void step(__m256 (&sum)[R][2 * C], const char* w, size_t block, const char* x, size_t ldx) {
    __m256 line[2 * C];
    for (int h = 0; h < 2 * C; ++h) line[h] = _mm256_castsi256_ps(half_line(w, block, h));
    for (int r = 0; r < R; ++r) {
      float in;
      __builtin_memcpy(&in, x + r * ldx, sizeof in);
      for (int h = 0; h < 2 * C; ++h) sum[r][h] = _mm256_fmadd_ps(line[h], _mm256_set1_ps(in), sum[r][h]);
    }
  }
};

const Kernels table = {"avx2", matmul_bf16<Half<Bf16>>, matmul_f32<Half<F32>>, narrow, rms_norm, gate,
                       softmax_exp, maximum, add, soft_cap};

}  // namespace

const Kernels* kernels_avx2() { return &table; }

}  // namespace foredraft

#else

namespace foredraft {
const Kernels* kernels_avx2() { return nullptr; }
}  // namespace foredraft

#endif
