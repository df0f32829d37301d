// The tiers this machine can run, best first.
#pragma once

#include "quantised.h"

#if defined(_WIN32)
#define FD_API extern "C" __declspec(dllexport)
#else
#define FD_API extern "C" __attribute__((visibility("default")))
#endif

namespace foredraft {

struct Tier {
  const char* name;
  const Kernels* kernels;
  const BlockKernels* blocks;
};

// The tier of that name, or null if the processor or the system announces no such thing, or it was not compiled in.
// amx asks the system for its tile registers. An announced tier may still be refused: see fd_probe_tier.
const Tier* find_tier(const char* name);

}  // namespace foredraft

// Names of the tiers that find_tier gives, best first, separated by commas.
FD_API const char* fd_tiers();
// 1: small products in this tier have the right values; 0: they have not; -1: no such tier here. May die of a signal
// where a virtual machine announces what it then refuses, so amx is to be probed in a child process.
FD_API int fd_probe_tier(const char* name);
// The Kernels and the BlockKernels of a tier, or null: for tests.
FD_API const void* fd_kernels(const char* name);
FD_API const void* fd_block_kernels(const char* name);
