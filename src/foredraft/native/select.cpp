#include "select.h"

#include <cstring>
#include <initializer_list>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace foredraft {
namespace {

struct Processor {
  bool avx2 = false, avx_vnni = false, avx512_vnni = false, avx512 = false, amx = false;
};

#if defined(__x86_64__)
Processor detect() {
  Processor has;
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return has;  // OSXSAVE
  const bool fma = (c >> 12 & 1) && (c >> 28 & 1) && (c >> 29 & 1);  // FMA, AVX, F16C
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  const bool ymm = (low & 0x6) == 0x6, zmm = (low & 0xe6) == 0xe6, tiles = (low >> 17 & 3) == 3;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return has;
  has.avx2 = ymm && fma && (b >> 5 & 1);
  const bool avx512 = (b >> 16 & 1) && (b >> 17 & 1) && (b >> 30 & 1) && (b >> 31 & 1);  // F, DQ, BW, VL
  const bool amx = (d >> 22 & 1) && (d >> 24 & 1) && (d >> 25 & 1);                      // BF16, TILE, INT8
  has.avx512_vnni = has.avx2 && zmm && avx512 && (c >> 11 & 1);
  if (a < 1 || !__get_cpuid_count(7, 1, &a, &b, &c, &d)) return has;
  has.avx_vnni = has.avx2 && (a >> 4 & 1);
  has.avx512 = has.avx512_vnni && (a >> 5 & 1);  // AVX512-BF16
  has.amx = has.avx512 && tiles && amx;
  return has;
}
#else
Processor detect() { return {}; }
#endif

// Linux gives a process its tile registers on request only.
bool tiles_permitted() {
#if defined(__linux__) && defined(__x86_64__)
  constexpr long kRequest = 0x1023, kTileData = 18;
  static const bool permitted = syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  return permitted;
#else
  return false;
#endif
}

const Processor& processor() {
  static const Processor found = detect();
  return found;
}

// Small integers, so every order of the sums is exact. The portable tier has nothing that a processor could lack.
bool exact_products(const Kernels& kernels) {
  constexpr size_t kBlocks = 5, kInputs = 64, kWidth = kBlocks * kLanes;
  alignas(64) uint16_t w[kWidth * kInputs], x[kMaxRows * kInputs];
  constexpr uint16_t kSmall[] = {0xc080, 0xc040, 0xc000, 0xbf80, 0, 0x3f80, 0x4000, 0x4040};  // -4 to 3
  uint32_t state = 1;
  auto small = [&] { return kSmall[(state = state * 1664525u + 1013904223u) >> 29]; };
  for (uint16_t& v : w) v = small();
  for (uint16_t& v : x) v = small();
  for (int rows : {1, 7, 16, 17, 33, kMaxRows}) {
    float y[kMaxRows * kWidth] = {}, right[kMaxRows * kWidth] = {};
    kernels.matmul_bf16(w, kBlocks, kInputs, x, kInputs, rows, y, kWidth, 0);
    kernels_portable()->matmul_bf16(w, kBlocks, kInputs, x, kInputs, rows, right, kWidth, 0);
    if (std::memcmp(y, right, sizeof y)) return false;
  }
  return true;
}

}  // namespace

const Tier* find_tier(const char* name) {
  const Processor& has = processor();
  static const Tier tiers[] = {
      {"amx", has.amx && tiles_permitted() ? kernels_amx() : nullptr, block_kernels_amx()},
      {"avx512", has.avx512 ? kernels_avx512() : nullptr, block_kernels_avx512()},
      {"avx512-vnni", has.avx512_vnni ? kernels_avx2() : nullptr, block_kernels_avx512()},
      {"avx-vnni", has.avx_vnni ? kernels_avx2() : nullptr, block_kernels_avx_vnni()},
      {"avx2", has.avx2 ? kernels_avx2() : nullptr, block_kernels_avx2()},
      {"portable", kernels_portable(), block_kernels_portable()},
  };
  for (const Tier& tier : tiers)
    if (!std::strcmp(tier.name, name)) return tier.kernels && tier.blocks ? &tier : nullptr;
  return nullptr;
}

}  // namespace foredraft

const char* fd_tiers() {
  static const std::string names = [] {
    std::string found;
    for (const char* name : {"amx", "avx512", "avx512-vnni", "avx-vnni", "avx2", "portable"})
      if (foredraft::find_tier(name)) found += (found.empty() ? "" : ",") + std::string(name);
    return found;
  }();
  return names.c_str();
}

int fd_probe_tier(const char* name) {
  const foredraft::Tier* tier = foredraft::find_tier(name);
  return tier ? foredraft::exact_products(*tier->kernels) && foredraft::exact_blocks(*tier->blocks) : -1;
}

const void* fd_kernels(const char* name) {
  const foredraft::Tier* tier = foredraft::find_tier(name);
  return tier ? tier->kernels : nullptr;
}

const void* fd_block_kernels(const char* name) {
  const foredraft::Tier* tier = foredraft::find_tier(name);
  return tier ? tier->blocks : nullptr;
}
