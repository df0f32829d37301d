// What a tier provides. One source file a tier, compiled with its own flags; everything else is common code.
//
// Bits: a row's result depends on that row's inputs alone. Every row is summed in the same order whatever the number of
// rows, the blocks asked for together, or the thread; no reassociation (-ffp-contract=off, no -ffast-math).
#pragma once

#include <cstddef>
#include <cstdint>

namespace foredraft {

constexpr size_t kLanes = 16;     // output columns of a packed block
constexpr size_t kDepth = 32;     // inputs are padded to a multiple of this with zeros
constexpr int kMaxRows = 64;      // rows of one call

// bf16 weights are packed as [block][K / 2][16 columns][2 inputs]: 64 bytes hold an input pair for 16 columns, and 32
// inputs of a block are one AMX B tile. f32 weights are packed as [block][K][16 columns].
struct Kernels {
  const char* name;

  // y[r][16 b + c] = sum over k of x[r][k] * w[b][k][c], for r < rows and b < blocks. x: bf16 bits, row stride ldx
  // (elements), 64-byte aligned rows; y: f32, row stride ldy; k a multiple of 32; 1 <= rows <= 64. Pairs of inputs
  // that are 0 in x change no bits, so that a row need not know how many keys come after those it sees. What lies `far`
  // bytes past the weights is fetched on the way; 0: the weights that follow.
  void (*matmul_bf16)(const uint16_t* w, size_t blocks, size_t k, const uint16_t* x, size_t ldx, int rows, float* y,
                      size_t ldy, ptrdiff_t far);
  // The same over f32 weights and inputs.
  void (*matmul_f32)(const float* w, size_t blocks, size_t k, const float* x, size_t ldx, int rows, float* y,
                     size_t ldy, ptrdiff_t far);

  // out[i] = bf16(in[i]), round to nearest even.
  void (*narrow)(const float* in, size_t n, uint16_t* out);
  // out[i] = in[i] * weight[i] / sqrt(mean(in^2) + eps), all in f32. Fixed order of the sum.
  void (*rms_norm)(const float* in, const float* weight, size_t n, float eps, float* out);
  // out[i] = act(gate[i]) * up[i]; act 0: silu, 1: gelu (tanh form).
  void (*gate)(const float* gate, const float* up, size_t n, int act, float* out);
  // In place: s[i] = exp(s[i] - max) for i < n; returns the sum, lane i % 16 first, then a fixed tree over lanes.
  float (*softmax_exp)(float* s, size_t n, float max);
  // Returns the largest of n values.
  float (*maximum)(const float* s, size_t n);
  // y[i] += x[i].
  void (*add)(float* y, const float* x, size_t n);
  // In place: s[i] = cap * tanh(s[i] / cap).
  void (*soft_cap)(float* s, size_t n, float cap);
};

// Each returns its table, or null where it was not compiled for this architecture.
const Kernels* kernels_amx();
const Kernels* kernels_avx512();
const Kernels* kernels_avx2();
const Kernels* kernels_portable();

}  // namespace foredraft
