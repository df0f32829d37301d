// AVX512 with integer dot products. Flags: -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni.
#include "quantised.h"

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include <immintrin.h>

namespace foredraft {
namespace {

#include "quantised_matmul.h"

#include "quantised_avx512.h"  // after it: what it names is declared there

const BlockKernels table = {"avx512-vnni", matmul<Ops>, quantise<Ops>};

}  // namespace

const BlockKernels* block_kernels_avx512() { return &table; }

}  // namespace foredraft

#else

namespace foredraft {
const BlockKernels* block_kernels_avx512() { return nullptr; }
}  // namespace foredraft

#endif
