// The file's blocks, taken apart and put into the packed form.
#include "quantised.h"

#include <cmath>
#include <cstring>
#include <string>

#include "model.h"

namespace foredraft {
namespace {

// A block of the file.
struct Parts {
  uint16_t d, least;                  // f16; least: of the minimums
  uint8_t codes[256];                 // those of 8 bits are signed
  uint8_t scales[16], minimums[8];    // of kinds of 256
};

bool finite(uint16_t half) { return (half >> 10 & 31) != 31; }

// Scales and minimums of eight cells in 12 bytes: six bits each, the upper two of the last four kept apart.
void six_bits(const uint8_t* raw, Parts& to) {
  for (int i = 0; i < 4; ++i) {
    to.scales[i] = raw[i] & 63, to.minimums[i] = raw[i + 4] & 63;
    to.scales[i + 4] = uint8_t((raw[i + 8] & 15) | raw[i] >> 6 << 4);
    to.minimums[i + 4] = uint8_t(raw[i + 8] >> 4 | raw[i + 4] >> 6 << 4);
  }
}

uint16_t half_at(const uint8_t* raw) { return uint16_t(raw[0] | raw[1] << 8); }

Parts take_apart(int kind, const uint8_t* raw) {
  const Form& f = form(kind);
  Parts to = {};
  if (kind == FD_Q6_K) {  // 128 inputs from 64 bytes of low bits and 32 of high ones
    to.d = half_at(raw + 208);
    std::memcpy(to.scales, raw + 192, 16);
    for (int i = 0; i < 256; ++i) {
      const int half = i / 128, quarter = i % 128 / 32, at = i % 32;
      const uint8_t low = raw[64 * half + 32 * (quarter % 2) + at] >> (quarter / 2 * 4) & 15;
      to.codes[i] = uint8_t(low | (raw[128 + 32 * half + at] >> 2 * quarter & 3) << 4);
    }
    return to;
  }
  to.d = half_at(raw);
  if (f.minimum) to.least = half_at(raw + 2);
  raw += f.minimum ? 4 : 2;
  if (f.super) {  // every 64 inputs share 32 bytes of low bits; every input of 32 has a byte of high ones
    six_bits(raw, to);
    const uint8_t *high = raw + 12, *low = f.bits == 5 ? high + 32 : high;
    for (int i = 0; i < 256; ++i) {
      to.codes[i] = low[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
      if (f.bits == 5) to.codes[i] |= uint8_t((high[i % 32] >> i / 32 & 1) << 4);
    }
    return to;
  }
  if (f.bits == 8) {
    std::memcpy(to.codes, raw, 32);
    return to;
  }
  uint32_t high = 0;
  if (f.bits == 5) {
    std::memcpy(&high, raw, 4);
    raw += 4;
  }
  for (int i = 0; i < 32; ++i) to.codes[i] = uint8_t((raw[i % 16] >> i / 16 * 4 & 15) | (high >> i & 1) << 4);
  return to;
}

// The bytes of a column within a group.
struct Place {
  const Form& f;
  char* group;
  size_t column;

  void half(size_t row, uint16_t value) const { std::memcpy(group + (row * kLanes + column) * 2, &value, 2); }
  uint16_t half(size_t row) const {
    uint16_t value;
    std::memcpy(&value, group + (row * kLanes + column) * 2, 2);
    return value;
  }
  uint8_t& byte(size_t row) const { return reinterpret_cast<uint8_t*>(group)[64 + row * kLanes + column]; }
  uint8_t* line(size_t cell, size_t line, size_t i) const {
    return reinterpret_cast<uint8_t*>(group) + f.head() + (cell * f.lines() + line) * 64 + column * 4 + i % 4;
  }
  void code(size_t cell, size_t i, uint8_t value) const {
    const size_t j = i / 4;
    if (f.bits == 8) {
      *line(cell, j, i) = value;
      return;
    }
    *line(cell, j % 4, i) |= uint8_t((value & 15) << j / 4 * 4);
    if (f.bits == 5) *line(cell, 4, i) |= uint8_t(value >> 4 << j);
    if (f.bits == 6) *line(cell, 4 + j / 4, i) |= uint8_t(value >> 4 << j % 4 * 2);
  }
  int code(size_t cell, size_t i) const {
    const size_t j = i / 4;
    if (f.bits == 8) return int8_t(*line(cell, j, i));
    int value = *line(cell, j % 4, i) >> j / 4 * 4 & 15;
    if (f.bits == 5) value |= (*line(cell, 4, i) >> j & 1) << 4;
    if (f.bits == 6) value |= (*line(cell, 4 + j / 4, i) >> j % 4 * 2 & 3) << 4;
    return value;
  }
};

// What a code of a cell is worth.
struct Worth {
  float scale[2], minimum;
  int offset;

  float of(int code, size_t i) const { return float(code - offset) * scale[i / 16] + minimum; }
};

Worth worth(const Form& f, uint16_t d, uint16_t least, const uint8_t* scales, uint8_t minimum) {
  const float one = widen_half(d), lowest = widen_half(least);
  Worth to = {{one, one}, f.super ? -(lowest * minimum) : lowest, f.offset};
  for (int p = 0; f.super && p < 2; ++p)
    to.scale[p] = one * (f.parts == 2 ? float(int8_t(scales[p])) : float(scales[0]));
  if (!f.minimum) to.minimum = 0;
  return to;
}

void check_blocks(int kind, const void* source, size_t rows, size_t inputs) {
  const Form& f = form(kind);
  const size_t many = inputs / f.inputs();
  for (size_t r = 0; r < rows; ++r)
    for (size_t b = 0; b < many; ++b) {
      const uint8_t* raw = static_cast<const uint8_t*>(source) + (r * many + b) * f.raw;
      const bool fine = kind == FD_Q6_K ? finite(half_at(raw + 208))
                                        : finite(half_at(raw)) && (!f.minimum || finite(half_at(raw + 2)));
      if (!fine)
        throw Fault{"block " + std::to_string(b) + " of row " + std::to_string(r) + " has a scale that is not finite"};
    }
}

}  // namespace

void keep_blocks(int kind, const void* source, size_t rows, size_t inputs, char* packed) {
  check_blocks(kind, source, rows, inputs);
  std::memcpy(packed, source, rows * (inputs / form(kind).inputs()) * form(kind).raw);
}

void pack_blocks(int kind, const void* source, size_t rows, size_t inputs, size_t first, char* packed) {
  check_blocks(kind, source, rows, inputs);
  const Form& f = form(kind);
  const size_t many = inputs / f.inputs(), cells = round_up(inputs, kRowPad) / kCell, stride = block_bytes(kind, cells);
  for (size_t r = 0; r < rows; ++r)
    for (size_t b = 0; b < many; ++b) {
      const Parts raw = take_apart(kind, static_cast<const uint8_t*>(source) + (r * many + b) * f.raw);
      const size_t cell = b * f.inputs() / kCell, out = first + r;
      const Place to = {f, packed + out / kLanes * stride + cell / f.cells() * f.group(), out % kLanes};
      if (f.super) {
        to.half(0, raw.d), to.half(1, raw.least);
        for (size_t i = 0; i < 8; ++i) {
          to.byte(i) = raw.scales[i];
          to.byte(8 + i) = f.minimum ? raw.minimums[i] : raw.scales[8 + i];
        }
      } else {
        to.half(cell % 2, raw.d);
        if (f.minimum) to.half(2 + cell % 2, raw.least);
      }
      for (size_t i = 0; i < f.inputs(); ++i) to.code(cell % f.cells() + i / kCell, i % kCell, raw.codes[i]);
    }
}

void unpack_column(int kind, const char* block, size_t inputs, size_t column, float* out) {
  const Form& f = form(kind);
  for (size_t first = 0; first < inputs; first += kCell) {
    const size_t cell = first / kCell, within = cell % f.cells();
    const Place at = {f, const_cast<char*>(block) + cell / f.cells() * f.group(), column};
    uint8_t scales[2] = {}, minimum = 0;
    if (f.super) {
      for (int p = 0; p < f.parts; ++p) scales[p] = at.byte(within * f.parts + p);
      if (f.minimum) minimum = at.byte(8 + within);
    }
    const Worth cells = worth(f, at.half(f.super ? 0 : within), f.minimum ? at.half(f.super ? 1 : 2 + within) : 0, scales,
                              minimum);
    for (size_t i = 0; i < kCell && first + i < inputs; ++i) out[first + i] = cells.of(at.code(within, i), i);
  }
}

void unpack_row(int kind, const void* raw, size_t inputs, float* out) {
  const Form& f = form(kind);
  for (size_t b = 0; b < inputs / f.inputs(); ++b) {
    const Parts parts = take_apart(kind, static_cast<const uint8_t*>(raw) + b * f.raw);
    for (size_t cell = 0; cell < f.inputs() / kCell; ++cell) {
      const Worth cells = worth(f, parts.d, parts.least, parts.scales + cell * f.parts, parts.minimums[cell]);
      for (size_t i = 0; i < kCell; ++i) {
        const uint8_t code = parts.codes[cell * kCell + i];
        out[b * f.inputs() + cell * kCell + i] = cells.of(f.bits == 8 ? int8_t(code) : code, i);
      }
    }
  }
}

void copy_column(int kind, const char* from, size_t column, char* to, size_t to_column, size_t bytes) {
  const size_t group = coded(kind) ? form(kind).group() : bytes;
  for (const char* const end = from + bytes; from < end; from += group, to += group) {
    size_t at = 0;
    auto rows = [&](size_t until, size_t width) {
      for (; at < until; at += kLanes * width) std::memcpy(to + at + to_column * width, from + at + column * width, width);
    };
    if (coded(kind)) rows(form(kind).super ? 64 : form(kind).head(), 2), rows(form(kind).head(), 1);
    rows(group, 4);
  }
}

}  // namespace foredraft
