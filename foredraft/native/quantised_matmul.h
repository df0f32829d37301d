// Products with coded weights as the tiers share them. Included inside each tier's anonymous namespace, so that nothing
// here is merged with code compiled for another instruction set; for the same reason no std:: templates.
//
// A tier gives Ops:
//   Ints, Floats: kWidth lanes of 32 bits; kRows: most rows of a tile; kFlips: whether signed codes come as code + 128
//   load(at), all(int32), both(a, b), mask(v, bits), left<n>(v): shifted, to the right where n < 0
//   dot<bits, n>(lines, x, start): start + the sum over n lines of products with 4 codes each from x on
//   floats(Ints), halves(at), codes(at), signed_codes(at): Floats of ints, of f16, of bytes
//   all(float), times(a, b), add(a, b, sum): sum + a * b; store(y, Floats)

constexpr size_t kAhead = 8192;  // bytes, of the weights to come

template <int kBits, class Ops>
__attribute__((always_inline)) inline void take_lines(const char* cell, size_t part, typename Ops::Ints* line) {
  using Ints = typename Ops::Ints;
  auto at = [&](size_t i) { return Ops::load(cell + i * 64 + part); };
  if constexpr (kBits == 8) {
    for (size_t i = 0; i < 8; ++i)
      if constexpr (Ops::kFlips)
        line[i] = Ops::flip(at(i));
      else
        line[i] = at(i);
    return;
  }
  for (size_t i = 0; i < 4; ++i) {
    const Ints pair = at(i);
    line[i] = Ops::mask(pair, 0x0f0f0f0f);
    line[i + 4] = Ops::mask(Ops::template left<-4>(pair), 0x0f0f0f0f);
  }
  if constexpr (kBits == 5) {
    const Ints high = at(4);
    const int bit = 0x10101010;
    line[0] = Ops::both(line[0], Ops::mask(Ops::template left<4>(high), bit));
    line[1] = Ops::both(line[1], Ops::mask(Ops::template left<3>(high), bit));
    line[2] = Ops::both(line[2], Ops::mask(Ops::template left<2>(high), bit));
    line[3] = Ops::both(line[3], Ops::mask(Ops::template left<1>(high), bit));
    line[4] = Ops::both(line[4], Ops::mask(high, bit));
    line[5] = Ops::both(line[5], Ops::mask(Ops::template left<-1>(high), bit));
    line[6] = Ops::both(line[6], Ops::mask(Ops::template left<-2>(high), bit));
    line[7] = Ops::both(line[7], Ops::mask(Ops::template left<-3>(high), bit));
  }
  if constexpr (kBits == 6)
    for (size_t h = 0; h < 2; ++h) {
      const Ints high = at(4 + h);
      const int bits = 0x30303030;
      Ints* to = line + 4 * h;
      to[0] = Ops::both(to[0], Ops::mask(Ops::template left<4>(high), bits));
      to[1] = Ops::both(to[1], Ops::mask(Ops::template left<2>(high), bits));
      to[2] = Ops::both(to[2], Ops::mask(high, bits));
      to[3] = Ops::both(to[3], Ops::mask(Ops::template left<-2>(high), bits));
    }
}

// The scales and the minimum of one cell.
template <class Ops>
struct Worth {
  typename Ops::Floats scale[2], minimum;
};

template <int kKind, class Ops>
__attribute__((always_inline)) inline Worth<Ops> take_worth(const char* group, size_t cell, size_t unit) {
  constexpr Form f = form(kKind);
  constexpr size_t kStep = Ops::kWidth;
  Worth<Ops> to;
  if constexpr (!f.super) {
    to.scale[0] = Ops::halves(group + (cell * kLanes + unit * kStep) * 2);
    if constexpr (f.minimum) to.minimum = Ops::halves(group + ((2 + cell) * kLanes + unit * kStep) * 2);
    return to;
  }
  const auto d = Ops::halves(group + unit * kStep * 2);
  const char* codes = group + 64 + unit * kStep;
  if constexpr (f.parts == 2) {
    to.scale[0] = Ops::times(d, Ops::signed_codes(codes + 2 * cell * kLanes));
    to.scale[1] = Ops::times(d, Ops::signed_codes(codes + (2 * cell + 1) * kLanes));
  } else {
    const auto least = Ops::halves(group + (kLanes + unit * kStep) * 2);
    to.scale[0] = Ops::times(d, Ops::codes(codes + cell * kLanes));
    to.minimum = Ops::times(Ops::times(least, Ops::all(-1.0f)), Ops::codes(codes + (8 + cell) * kLanes));
  }
  return to;
}

constexpr int log_of(int n) { return n <= 1 ? 0 : 1 + log_of(n / 2); }

// y[r][0..16) over all cells of one block for R rows.
template <class Ops, int kKind, int R>
void tile(const char* w, size_t cells, const char* x, size_t ldx, float* y, size_t ldy, ptrdiff_t ahead) {
  constexpr Form f = form(kKind);
  constexpr int kUnits = kLanes / Ops::kWidth, kOffset = f.bits == 8 && Ops::kFlips ? 128 : f.offset;
  using Ints = typename Ops::Ints;
  typename Ops::Floats sum[R][kUnits];
  for (int r = 0; r < R; ++r)
    for (int u = 0; u < kUnits; ++u) sum[r][u] = Ops::all(0.0f);
  const char* scales = x + cells * kCell;
  for (size_t at = 0; at < cells; at += f.cells(), w += f.group())
    for (size_t c = 0; c < f.cells(); ++c) {
      const char* cell = w + f.head() + c * f.lines() * 64;
      if (ahead) {
        if (c == 0)
          for (size_t i = 0; i < f.head(); i += 64) __builtin_prefetch(w + ahead + i);
        for (size_t i = 0; i < f.lines(); ++i) __builtin_prefetch(cell + ahead + i * 64);
      }
      const char *codes = x + (at + c) * kCell, *scale = scales + (at + c) * 4;
      for (int u = 0; u < kUnits; ++u) {
        Ints line[8];
        take_lines<f.bits, Ops>(cell, u * Ops::kWidth * 4, line);
        const Worth<Ops> worth = take_worth<kKind, Ops>(w, c, u);
        for (int r = 0; r < R; ++r) {
          float of_row, of_sum;
          __builtin_memcpy(&of_row, scale + r * ldx, 4);
          auto minus = [&](size_t which) {
            int32_t taken;
            __builtin_memcpy(&taken, scale + r * ldx + which, 4);
            return Ops::template left<log_of(kOffset)>(Ops::all(taken));
          };
          const auto input = Ops::all(of_row);
          if constexpr (f.parts == 2) {
            for (int p = 0; p < 2; ++p) {
              const Ints start = minus(cells * 12 + (at + c + p) * 4);
              const Ints dot = Ops::template dot<f.bits, 4>(line + 4 * p, codes + r * ldx + 16 * p, start);
              sum[r][u] = Ops::add(Ops::floats(dot), Ops::times(worth.scale[p], input), sum[r][u]);
            }
            continue;
          }
          const Ints start = kOffset ? minus(cells * 8) : Ops::all(int32_t(0));
          const Ints dot = Ops::template dot<f.bits, 8>(line, codes + r * ldx, start);
          sum[r][u] = Ops::add(Ops::floats(dot), Ops::times(worth.scale[0], input), sum[r][u]);
          if constexpr (f.minimum) {
            __builtin_memcpy(&of_sum, scale + r * ldx + cells * 4, 4);
            sum[r][u] = Ops::add(worth.minimum, Ops::all(of_sum), sum[r][u]);
          }
        }
      }
    }
  for (int r = 0; r < R; ++r)
    for (int u = 0; u < kUnits; ++u) Ops::store(y + r * ldy + u * Ops::kWidth, sum[r][u]);
}

// Groups of as few rows as need no more groups; the last may repeat rows of the one before, whose bits are the same.
template <class Ops, int kKind, int R = Ops::kRows>
void multiply(const char* w, size_t blocks, size_t cells, const char* x, size_t ldx, int rows, float* y, size_t ldy,
              ptrdiff_t far) {
  const int groups = (rows + Ops::kRows - 1) / Ops::kRows;
  if ((rows + groups - 1) / groups != R) {
    if constexpr (R > 1) multiply<Ops, kKind, R - 1>(w, blocks, cells, x, ldx, rows, y, ldy, far);
    return;
  }
  const size_t block = block_bytes(kKind, cells);
  for (size_t b = 0; b < blocks; ++b, w += block, y += kLanes)
    for (int r = 0; r < rows; r += R) {
      const int from = r + R <= rows ? r : rows - R;
      tile<Ops, kKind, R>(w, cells, x + from * ldx, ldx, y + from * ldy, ldy, r ? 0 : far ? far : kAhead);
    }
}

template <class Ops, int kKind = kFirstKind>
void matmul(int kind, const char* w, size_t blocks, size_t cells, const char* x, size_t ldx, int rows, float* y,
            size_t ldy, ptrdiff_t far) {
  if (kind == kKind)
    multiply<Ops, kKind>(w, blocks, cells, x, ldx, rows, y, ldy, far);
  else if constexpr (kKind + 1 < kFirstKind + kKinds)
    matmul<Ops, kKind + 1>(kind, w, blocks, cells, x, ldx, rows, y, ldy, far);
}

// 16 lanes, which the compiler turns into registers of the tier's width.
template <class E, int n = 16>
struct Lanes {
  typedef E Type __attribute__((vector_size(n * sizeof(E))));
};

// The lanes of v brought together in halves.
template <class E, int n = 16, class Join>
__attribute__((always_inline)) inline E across(typename Lanes<E, n>::Type v, Join join) {
  if constexpr (n == 1) {
    return v[0];
  } else {
    typename Lanes<E, n / 2>::Type half[2];
    __builtin_memcpy(half, &v, sizeof v);
    return across<E, n / 2>(join(half[0], half[1]), join);
  }
}

// Writes cell number `cell` of a row. Without contraction or reassociation every tier has the same bits here.
__attribute__((always_inline)) inline void code_cell(Lanes<float>::Type low, Lanes<float>::Type high, size_t cell,
                                                     size_t cells, char* row) {
  using Values = Lanes<float>::Type;
  using Codes = Lanes<int32_t>::Type;
  // Sizes compare as their bits do, and what is no number is above them all.
  const Codes sizes[2] = {(Codes)low & 0x7fffffff, (Codes)high & 0x7fffffff};
  const int32_t most = across<int32_t>(sizes[0] > sizes[1] ? sizes[0] : sizes[1],
                                       [](auto a, auto b) { return a > b ? a : b; });
  float largest;
  __builtin_memcpy(&largest, &most, 4);
  const bool number = most < 0x7f800000, some = number && largest > 1e-30f;
  const float scale = some ? largest * (1 / 127.0f) : number ? 0.0f : __builtin_nanf("");
  const float by = some ? 127.0f / largest : 0.0f;
  if (!number) low = high = Values{};
  int32_t sum[2];
  for (int i = 0; i < 2; ++i) {
    const Codes code = (Codes)((i ? high : low) * by + 12582912.0f) - 0x4b400000;  // 1.5 * 2^23: rounds to an integer
    const auto bytes = __builtin_convertvector(code, Lanes<int8_t>::Type);
    __builtin_memcpy(row + cell * kCell + 16 * i, &bytes, 16);
    sum[i] = across<int32_t>(code, [](auto a, auto b) { return a + b; });
  }
  const int32_t minus[3] = {-(sum[0] + sum[1]), -sum[0], -sum[1]};
  const float both = scale * static_cast<float>(sum[0] + sum[1]);
  char* after = row + cells * kCell + cell * 4;
  __builtin_memcpy(after, &scale, 4);
  __builtin_memcpy(after + cells * 4, &both, 4);
  __builtin_memcpy(after + cells * 8, &minus[0], 4);
  __builtin_memcpy(after + cells * 12 + cell * 4, &minus[1], 8);
}

void quantise(const float* in, size_t n, size_t first, size_t end, size_t cells, char* row) {
  Lanes<float>::Type value[2];
  size_t cell = first;
  for (; cell < end && n >= kCell; ++cell, in += kCell, n -= kCell) {
    __builtin_memcpy(value, in, sizeof value);
    code_cell(value[0], value[1], cell, cells, row);
  }
  for (; cell < end; ++cell, n = 0) {
    value[0] = value[1] = Lanes<float>::Type{};
    if (n) __builtin_memcpy(value, in, n * sizeof(float));
    code_cell(value[0], value[1], cell, cells, row);
  }
}
