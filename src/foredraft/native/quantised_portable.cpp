// For any little-endian processor: vectors of 16 bytes, Arm's dot products where the compiler's flags bring them.
#include "quantised.h"

#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

namespace foredraft {
namespace {

#include "quantised_matmul.h"
#include "quantised_portable.h"

const BlockKernels table = {"portable", matmul<Ops>, quantise<Ops>};

}  // namespace

const BlockKernels* block_kernels_portable() { return &table; }

}  // namespace foredraft
