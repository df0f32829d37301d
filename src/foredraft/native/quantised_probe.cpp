// Whether a tier's coded products are right.
#include <cstring>
#include <initializer_list>

#include "quantised.h"

namespace foredraft {

// Scales of 1 and small ones, inputs that are their own codes: no float rounds, whatever the order.
bool exact_blocks(const BlockKernels& kernels) {
  constexpr size_t kBlocks = 3, kCells = 8, kWidth = kBlocks * kLanes, kInputs = kCells * kCell;
  constexpr size_t kRow = row_bytes(kCells), kBytes = kBlocks * block_bytes(kFirstKind, kCells);  // of the largest kind
  alignas(64) char w[kBytes], x[kMaxRows * kRow], right_x[kMaxRows * kRow];
  uint32_t state = 1;
  auto byte = [&] { return (state = state * 1664525u + 1013904223u) >> 24; };
  std::memset(x, 0, sizeof x), std::memset(right_x, 0, sizeof right_x);
  for (size_t r = 0; r < kMaxRows; ++r) {
    float in[kInputs];
    for (size_t i = 0; i < kInputs; ++i) in[i] = i % kCell == r % kCell ? 127.0f : float(byte() % 8) - 4;
    kernels.quantise(in, kInputs, 0, kCells, kCells, x + r * kRow);
    block_kernels_portable()->quantise(in, kInputs, 0, kCells, kCells, right_x + r * kRow);
  }
  if (std::memcmp(x, right_x, sizeof x)) return false;
  for (int kind = kFirstKind; kind < kFirstKind + kKinds; ++kind) {
    const Form& f = form(kind);
    for (char& b : w) b = static_cast<char>(byte());
    for (size_t group = 0; group < kBlocks * block_bytes(kind, kCells); group += f.group())
      for (size_t i = 0; i < f.head(); ++i)
        w[group + i] = static_cast<char>(i >= 64 && f.super ? byte() % 4 : i % 2 ? 0x3c : 0);  // 1 in f16
    for (int rows : {1, 3, 7, 16, 17, 33, kMaxRows}) {
      float y[kMaxRows * kWidth] = {}, right[kMaxRows * kWidth] = {};
      kernels.matmul(kind, w, kBlocks, kCells, x, kRow, rows, y, kWidth, 0);
      block_kernels_portable()->matmul(kind, w, kBlocks, kCells, x, kRow, rows, right, kWidth, 0);
      if (std::memcmp(y, right, sizeof y)) return false;
    }
  }
  return true;
}

}  // namespace foredraft
