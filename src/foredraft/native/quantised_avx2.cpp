// AVX2: products of bytes added in pairs of int16. Flags: -mavx2 -mfma -mf16c.
#include "quantised.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>

namespace foredraft {
namespace {

#include "quantised_matmul.h"

#include "quantised_avx2.h"

struct Ops : Half {
  static constexpr int kRows = 4;
  static constexpr bool kFlips = false;
  // Pairs of products in int16, of as many lines as it holds: 4 * 2 * 31 * 127 = 31496 for 5 bits and fewer,
  // 2 * 2 * 63 * 127 = 32004 for 6, 2 * 128 * 127 = 32512 for 8. Nothing saturates.
  template <int kBits, int kUnits, int kLines>
  static void dot(const Ints* line, const char* x, Ints* sum) {
    constexpr int kSome = kBits == 8 ? 1 : kBits == 6 ? 2 : 4;
    for (int i = 0; i < 4; i += kSome) {
      Ints some[kUnits];
      for (int j = i; j < i + kSome; ++j) {
        const Ints input = four(x + 4 * j);
        for (int u = 0; u < kUnits; ++u) {
          const Ints w = line[u * kLines + j], pairs = kBits == 8 ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(input, w))
                                                                  : _mm256_maddubs_epi16(w, input);
          some[u] = j == i ? pairs : _mm256_add_epi16(some[u], pairs);
        }
      }
      for (int u = 0; u < kUnits; ++u) sum[u] = _mm256_add_epi32(sum[u], _mm256_madd_epi16(some[u], _mm256_set1_epi16(1)));
    }
  }
};

const BlockKernels table = {"avx2", matmul<Ops>, quantise<Ops>};

}  // namespace

const BlockKernels* block_kernels_avx2() { return &table; }

}  // namespace foredraft

#else

namespace foredraft {
const BlockKernels* block_kernels_avx2() { return nullptr; }
}  // namespace foredraft

#endif
