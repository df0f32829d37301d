#include "quantised.h"

namespace foredraft {
const BlockKernels* block_kernels_avx2() { return nullptr; }
}  // namespace foredraft
