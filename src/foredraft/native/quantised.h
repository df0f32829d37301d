// Weights in the blocks of a GGUF file, re-ordered for the kernels, and inputs in blocks of int8.
//
// 16 outputs are a block of columns; 32 inputs of it are a cell. Products within a cell are sums of integers, exact, so
// their order is free; what cells give is added in the order of the inputs. So a row's bits depend on that row alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels.h"

namespace foredraft {

constexpr size_t kCell = 32;  // inputs that share a scale
constexpr size_t kRowPad = 64;  // inputs of a row are padded to a multiple of this with zeros
constexpr int kFirstKind = 4;   // FD_Q8_0 of api.h; the kinds before it are floats

// How a kind's weights are made of its codes: (code - offset) * scale + minimum.
struct Form {
  int bits;      // of a code; 8: signed
  int offset;    // taken from every code
  bool minimum;  // a cell has one
  bool super;    // scales are themselves codes, of 256 inputs together
  int parts;     // scales a cell
  int raw;       // bytes of the file's block

  constexpr size_t cells() const { return super ? 8 : 2; }           // of a group
  constexpr size_t lines() const { return bits == 8 ? 8 : bits; }    // of 64 bytes, a cell: 4 of low bits, then the rest
  constexpr size_t head() const { return super ? 320 : minimum ? 128 : 64; }  // bytes of a group before its cells
  constexpr size_t group() const { return head() + cells() * lines() * 64; }
  constexpr size_t inputs() const { return super ? 256 : 32; }       // of the file's block
};

constexpr Form kForms[] = {
    {8, 0, false, false, 1, 34},  // Q8_0
    {4, 8, false, false, 1, 18},  // Q4_0
    {4, 0, true, false, 1, 20},   // Q4_1
    {5, 16, false, false, 1, 22}, // Q5_0
    {5, 0, true, false, 1, 24},   // Q5_1
    {4, 0, true, true, 1, 144},   // Q4_K
    {5, 0, true, true, 1, 176},   // Q5_K
    {6, 32, false, true, 2, 210}, // Q6_K
};
constexpr int kKinds = sizeof kForms / sizeof kForms[0];

constexpr bool coded(int kind) { return kind >= kFirstKind; }
constexpr const Form& form(int kind) { return kForms[kind - kFirstKind]; }

// A block of columns is groups of cells in the order of the inputs. A group of two cells begins with the scales of both
// [2][16], then the minimums, in f16; one of eight with d [16] and d of the minimums [16] in f16, and their codes [8][16]
// of scales and [8][16] of minimums, or [16][16] of signed scales. Then come the cells' lines. Byte b of lane c in line j:
// input 4 j + b of column c. Low bits: line j % 4, the lower half for j < 4. The fifth bit: bit j of the one line that
// follows. Fifth and sixth: bits 2 (j % 4) and up of the line j / 4 of the two that follow.
constexpr size_t block_bytes(int kind, size_t cells) { return cells / form(kind).cells() * form(kind).group(); }

// A row of inputs: codes [cells][32], then of each cell its scale (f32), scale times the sum of its codes (f32), that sum
// negated (int32), and the same of its halves (int32 [2]). A value is scale * code.
constexpr size_t row_bytes(size_t cells) { return (cells * (kCell + 20) + 63) / 64 * 64; }

struct BlockKernels {
  const char* name;
  // y[r][16 b + c] = sum over k of x[r][k] * w[b][k][c], for r < rows and b < blocks. x: rows of ldx bytes, 64-byte
  // aligned; cells is even, a multiple of 8 for kinds of 256; y, ldy, far as in Kernels.
  void (*matmul)(int kind, const char* w, size_t blocks, size_t cells, const char* x, size_t ldx, int rows, float* y,
                 size_t ldy, ptrdiff_t far);
  // Writes cells `first` up to `end` of a row that has `cells`: `n` values, then zeros. Round to nearest even, scale =
  // the largest size / 127. Where a value is no number, or infinite, the scale is NaN. The same bits in all tiers.
  void (*quantise)(const float* in, size_t n, size_t first, size_t end, size_t cells, char* row);
};

// Each returns its table, or null where it was not compiled for this architecture.
const BlockKernels* block_kernels_amx();
const BlockKernels* block_kernels_avx512();
const BlockKernels* block_kernels_avx_vnni();
const BlockKernels* block_kernels_avx2();
const BlockKernels* block_kernels_portable();

// Whether small products have the right values; see fd_probe_tier.
bool exact_blocks(const BlockKernels& kernels);

// Packs rows [rows][raw bytes] as columns `first` and up. Throws Fault for a scale that is not finite.
void pack_blocks(int kind, const void* source, size_t rows, size_t inputs, size_t first, char* packed);
// One column of packed blocks, and one row as the file has it: values of `inputs` inputs.
void unpack_column(int kind, const char* block, size_t inputs, size_t column, float* out);
void unpack_row(int kind, const void* raw, size_t inputs, float* out);
// Copies rows as they are. Throws Fault as pack_blocks does.
void keep_blocks(int kind, const void* source, size_t rows, size_t inputs, char* packed);
// Copies a column of one block of so many bytes to a column of another; also of the float types.
void copy_column(int kind, const char* from, size_t column, char* to, size_t to_column, size_t bytes);

}  // namespace foredraft
