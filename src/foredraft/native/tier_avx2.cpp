// AVX2: bf16 widened by a shift, fused multiply-add. Flags: -mavx2 -mfma.
#include "kernels.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

namespace foredraft {
namespace {

#include "elementwise.h"
#include "matmul.h"

// Two registers hold 16 columns; the rows and blocks of a tile leave four of the 16 registers for weights and inputs.
struct Half {
  using Sum = __m256;
  static constexpr int kRows = 4;
  static constexpr int columns(int rows) { return rows <= 2 ? 2 : 1; }
  static void store(float* y, __m256 sum) { _mm256_storeu_ps(y, sum); }
  static __m256i load(const char* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); }
  static __m256i all(uint32_t bits) { return _mm256_set1_epi32(static_cast<int>(bits)); }
};

struct Bf16 : Half {
  struct Pair {
    __m256 first, second;
  };
  static Pair widen(__m256i pair) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(pair, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(pair, all(0xffff0000u)))};
  }
  static Pair line(const char* at) { return widen(load(at)); }
  static Pair input(uint32_t bits) { return widen(all(bits)); }
  static __m256 mac(__m256 sum, const Pair& w, const Pair& x) {
    return _mm256_fmadd_ps(w.second, x.second, _mm256_fmadd_ps(w.first, x.first, sum));
  }
};

struct F32 : Half {
  static __m256 line(const char* at) { return _mm256_castsi256_ps(load(at)); }
  static __m256 input(uint32_t bits) { return _mm256_castsi256_ps(all(bits)); }
  static __m256 mac(__m256 sum, __m256 w, __m256 x) { return _mm256_fmadd_ps(w, x, sum); }
};

const Kernels table = {"avx2", matmul<Bf16>, matmul<F32>, narrow, rms_norm, gate, softmax_exp,
                       maximum, add, soft_cap};

}  // namespace

const Kernels* kernels_avx2() { return &table; }

}  // namespace foredraft

#else

namespace foredraft {
const Kernels* kernels_avx2() { return nullptr; }
}  // namespace foredraft

#endif
