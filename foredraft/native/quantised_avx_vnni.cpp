#include "quantised.h"

namespace foredraft {
const BlockKernels* block_kernels_avx_vnni() { return nullptr; }
}  // namespace foredraft
