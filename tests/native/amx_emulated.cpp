// tier_amx.cpp over emulated tiles, in the interface that tests use.
#define FD_TILES "amx_emulated.h"
#include "../../src/foredraft/native/tier_amx.cpp"

extern "C" __attribute__((visibility("default"))) const void* fd_kernels(const char*) {
  return foredraft::kernels_amx();
}
