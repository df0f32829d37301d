// Tensors of the packed form whose columns may be of several types, and rows as they enter products with them.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>

#include "select.h"

namespace foredraft {

struct Fault {  // thrown within the library, caught in api.cpp
  std::string text;
};

inline size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// Bytes of a row as the file has it.
inline size_t raw_bytes(int32_t kind, size_t inputs, size_t element) {
  if (!coded(kind)) return inputs * element;
  if (inputs % form(kind).inputs()) throw Fault{"a matrix has rows that are no whole blocks of its type"};
  return inputs / form(kind).inputs() * form(kind).raw;
}

// Neighbouring blocks of columns of one type: q, k and v of a matrix may differ.
struct Span {
  int32_t kind = 0;  // FD_BF16, which stands for the element type, or a type in blocks
  size_t first = 0, blocks = 0, offset = 0, stride = 0;
};

// One tensor of the packed form. Vectors have depth 0 and lie as they are.
struct Part {
  size_t offset = 0, bytes = 0, outputs = 0, inputs = 0, depth = 0;
  Span spans[3] = {};
  int count = 0;                      // of spans
  bool plain = false, codes = false;  // what its inputs have to be: both, where spans differ

  size_t cells() const { return round_up(inputs, kRowPad) / kCell; }
  // Adds outputs of one type; neighbours of one type are one span.
  void add(size_t more, int32_t kind, size_t element) {
    if (!count || spans[count - 1].kind != kind) {
      if (outputs % kLanes) throw Fault{"outputs of different types share a block of the packed form"};
      spans[count++] = {kind, outputs / kLanes, 0, 0, 0};
    }
    outputs += more;
    Span& span = spans[count - 1];
    span.blocks = round_up(outputs, kLanes) / kLanes - span.first;
    if (coded(kind)) raw_bytes(kind, inputs, element);  // or they are no whole blocks
    span.stride = coded(kind) ? block_bytes(kind, cells()) : kLanes * depth * element;
    (coded(kind) ? codes : plain) = true;
  }
  const Span& at(size_t block) const {
    int i = 0;
    while (i + 1 < count && block >= spans[i + 1].first) ++i;
    return spans[i];
  }
};

// Rows of the element type, in blocks of int8, or both where a tensor has both kinds of weights.
template <class T>
struct Rows {
  T* plain;       // [64, ld]
  size_t ld;
  char* codes;    // [64, stride]
  size_t stride;  // bytes
};

// Writes a row, or the stretch of it that begins at input `at`, as the weights of a part want it.
template <class T>
void enter(const Tier& tier, const Part& part, const float* in, size_t n, size_t row, size_t at, const Rows<T>& to) {
  if (part.plain) {
    T* x = to.plain + row * to.ld;
    if constexpr (sizeof(T) == 2)
      tier.kernels->narrow(in, n, x + at);
    else
      std::memcpy(x + at, in, n * sizeof(float));
    if (at + n >= part.inputs) std::fill(x + at + n, x + std::max(at + n, part.depth), T());
  }
  if (!part.codes) return;
  const size_t cells = part.cells(), end = at + n < part.inputs ? (at + n + kCell - 1) / kCell : cells;
  tier.blocks->quantise(in, n, at / kCell, end, cells, to.codes + row * to.stride);
}

// The columns of blocks `begin` up to `end` of a part; y is that of the first.
template <class T>
void multiply(const Tier& tier, const Part& part, const char* base, size_t begin, size_t end, const Rows<T>& x,
              size_t rows, float* y, size_t ldy) {
  for (int i = 0; i < part.count; ++i) {
    const Span& span = part.spans[i];
    const size_t from = std::max(begin, span.first), to = std::min(end, span.first + span.blocks);
    if (from >= to) continue;
    const char* w = base + span.offset + (from - span.first) * span.stride;
    float* out = y + (from - begin) * kLanes;
    if (coded(span.kind))
      tier.blocks->matmul(span.kind, w, to - from, part.cells(), x.codes, x.stride, int(rows), out, ldy, 0);
    else if constexpr (sizeof(T) == 2)
      tier.kernels->matmul_bf16(reinterpret_cast<const uint16_t*>(w), to - from, part.depth, x.plain, x.ld, int(rows),
                                out, ldy, 0);
    else
      tier.kernels->matmul_f32(reinterpret_cast<const float*>(w), to - from, part.depth, x.plain, x.ld, int(rows), out,
                               ldy, 0);
  }
}

}  // namespace foredraft
