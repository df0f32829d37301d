#include "quantised.h"

namespace foredraft {
const BlockKernels* block_kernels_amx() { return nullptr; }
}  // namespace foredraft
