// quantised_amx.cpp over emulated tiles, in the interface that tests use.
#define FD_TILES "amx_emulated.h"
#include "../../src/foredraft/native/quantised_amx.cpp"

extern "C" __attribute__((visibility("default"))) const void* fd_block_kernels(const char*) {
  return foredraft::block_kernels_amx();
}
