// AVX2 with integer dot products. Flags: those of quantised_avx2.cpp, -mavxvnni.
#include "quantised.h"

#if defined(__AVXVNNI__) && defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>

namespace foredraft {
namespace {

#include "quantised_matmul.h"

#include "quantised_avx2.h"

struct Ops : Half {
  static constexpr int kRows = 4;
  static constexpr bool kFlips = true;
  static Ints flip(Ints v) { return _mm256_xor_si256(v, all(int(0x80808080u))); }
  template <int kBits, int kUnits, int kLines>
  static void dot(const Ints* line, const char* x, Ints* sum) {
    for (int i = 0; i < 4; ++i) {
      const Ints input = four(x + 4 * i);
      for (int u = 0; u < kUnits; ++u) sum[u] = _mm256_dpbusd_avx_epi32(sum[u], line[u * kLines + i], input);
    }
  }
};

const BlockKernels table = {"avx-vnni", matmul<Ops>, quantise<Ops>};

}  // namespace

const BlockKernels* block_kernels_avx_vnni() { return &table; }

}  // namespace foredraft

#else

namespace foredraft {
const BlockKernels* block_kernels_avx_vnni() { return nullptr; }
}  // namespace foredraft

#endif
