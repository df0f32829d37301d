// Products with coded weights as the tiers share them. Included inside each tier's anonymous namespace, so that nothing
// here is merged with code compiled for another instruction set; for the same reason no std:: templates.
//
// A tier gives Ops:
//   Ints, Floats: kWidth lanes of 32 bits; kRows: most rows of a tile; kFlips: whether signed codes come as code + 128
//   load(at), all(int32), both(a, b), mask(v, bits), plus(a, b), left<n>(v): shifted, to the right where n < 0
//   dot<bits, units, lines>(line, x, sum): adds to the sum of each unit the products of four of its lines with the 16
//   codes from x on; a unit's lines follow those of the one before
//   floats(Ints), halves(at), codes(at), signed_codes(at): Floats of ints, of f16, of bytes
//   all(float), times(a, b), add(a, b, sum): sum + a * b; store(y, Floats)
//   pack(codes, to): 32 codes, a lane of 32 bits each, as bytes

constexpr size_t kAhead = 8192;  // bytes, of the weights to come

// Lines 4 h to 4 h + 3 of a cell, one code a byte.
template <int kBits, class Ops>
__attribute__((always_inline)) inline void take_lines(const char* cell, size_t part, int h, typename Ops::Ints* line) {
  using Ints = typename Ops::Ints;
  auto at = [&](size_t i) { return Ops::load(cell + i * 64 + part); };
  auto high = [&](int i, Ints bits) { line[i] = Ops::both(line[i], Ops::mask(bits, kBits == 5 ? 0x10101010 : 0x30303030)); };
  for (int i = 0; i < 4; ++i)
    if constexpr (kBits < 8)
      line[i] = Ops::mask(h ? Ops::template left<-4>(at(i)) : at(i), 0x0f0f0f0f);
    else if constexpr (Ops::kFlips)
      line[i] = Ops::flip(at(4 * h + i));
    else
      line[i] = at(4 * h + i);
  if constexpr (kBits == 5) {
    const Ints bits = at(4);
    high(0, h ? bits : Ops::template left<4>(bits));
    high(1, h ? Ops::template left<-1>(bits) : Ops::template left<3>(bits));
    high(2, h ? Ops::template left<-2>(bits) : Ops::template left<2>(bits));
    high(3, h ? Ops::template left<-3>(bits) : Ops::template left<1>(bits));
  }
  if constexpr (kBits == 6) {
    const Ints bits = at(4 + h);
    high(0, Ops::template left<4>(bits));
    high(1, Ops::template left<2>(bits));
    high(2, bits);
    high(3, Ops::template left<-2>(bits));
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

template <int kKind>
__attribute__((always_inline)) inline void fetch(const char* group, size_t cell, ptrdiff_t ahead) {
  constexpr Form f = form(kKind);
  if (!ahead) return;
  if (cell == 0)
    for (size_t i = 0; i < f.head(); i += 64) __builtin_prefetch(group + ahead + i);
  const char* at = group + f.head() + cell * f.lines() * 64 + ahead;
  for (size_t i = 0; i < f.lines(); ++i) __builtin_prefetch(at + i * 64);
}

// What a row brings to a cell. `scales`: of that row and cell.
template <class Ops, int kKind>
struct Input {
  static constexpr Form f = form(kKind);
  static constexpr int kOffset = f.bits == 8 && Ops::kFlips ? 128 : f.offset;

  // Of part p, where its sum of products begins: the offset times what is to be taken.
  __attribute__((always_inline)) static typename Ops::Ints start(const char* scales, size_t cells, size_t cell, int p) {
    if constexpr (kOffset == 0) return Ops::all(int32_t(0));
    int32_t taken;
    __builtin_memcpy(&taken, scales + (f.parts == 2 ? cells * 12 + (cell + p) * 4 : cells * 8), 4);
    return Ops::template left<log_of(kOffset)>(Ops::all(taken));
  }

  __attribute__((always_inline)) static void add(const Worth<Ops>& worth, const char* scales, size_t cells, int p,
                                                 typename Ops::Ints dot, typename Ops::Floats& sum) {
    float scale, of_sum;
    __builtin_memcpy(&scale, scales, 4);
    sum = Ops::add(Ops::floats(dot), Ops::times(worth.scale[p], Ops::all(scale)), sum);
    if constexpr (f.minimum) {
      __builtin_memcpy(&of_sum, scales + cells * 4, 4);
      sum = Ops::add(worth.minimum, Ops::all(of_sum), sum);
    }
  }
};

// y[r][0..16) over all cells of one block for R rows. Where there are 16 registers, two units share what is read of the
// inputs, and a cell's lines come in two halves.
template <class Ops, int kKind, int R>
struct Tile {
  static constexpr Form f = form(kKind);
  static constexpr int kUnits = kLanes / Ops::kWidth, kSpan = kUnits == 1 ? 1 : 2;
  using Ints = typename Ops::Ints;
  using Floats = typename Ops::Floats;
  using In = Input<Ops, kKind>;

  static void run(const char* w, size_t cells, const char* x, size_t ldx, float* y, size_t ldy, ptrdiff_t ahead) {
    Floats sum[R][kUnits];
    for (int r = 0; r < R; ++r)
      for (int u = 0; u < kUnits; ++u) sum[r][u] = Ops::all(0.0f);
    for (size_t at = 0; at < cells; at += f.cells(), w += f.group())
      for (size_t c = 0; c < f.cells(); ++c) {
        fetch<kKind>(w, c, ahead);
        for (int u = 0; u < kUnits; u += kSpan) add(w, c, u, x + (at + c) * kCell, x + cells * kCell + (at + c) * 4,
                                                    cells, at + c, ldx, sum);
      }
    for (int r = 0; r < R; ++r)
      for (int u = 0; u < kUnits; ++u) Ops::store(y + r * ldy + u * Ops::kWidth, sum[r][u]);
  }

  __attribute__((always_inline)) static void add(const char* group, size_t c, int u, const char* codes,
                                                 const char* scales, size_t cells, size_t cell, size_t ldx,
                                                 Floats (&sum)[R][kUnits]) {
    const char* at = group + f.head() + c * f.lines() * 64;
    Worth<Ops> worth[kSpan];
    for (int s = 0; s < kSpan; ++s) worth[s] = take_worth<kKind, Ops>(group, c, u + s);
    if constexpr (kSpan == 1) {
      Ints line[8];
      take_lines<f.bits, Ops>(at, 0, 0, line);
      take_lines<f.bits, Ops>(at, 0, 1, line + 4);
      for (int r = 0; r < R; ++r, codes += ldx, scales += ldx) {
        Ints first = In::start(scales, cells, cell, 0), second = Ops::all(int32_t(0));
        if (f.parts == 2) second = In::start(scales, cells, cell, 1);
        Ops::template dot<f.bits, 1, 4>(line, codes, &first);
        Ops::template dot<f.bits, 1, 4>(line + 4, codes + 16, &second);
        In::add(worth[0], scales, cells, 0, f.parts == 2 ? first : Ops::plus(first, second), sum[r][u]);
        if (f.parts == 2) In::add(worth[0], scales, cells, 1, second, sum[r][u]);
      }
      return;
    }
    Ints dot[R][kSpan];
    half<0>(at, u, codes, scales, cells, cell, ldx, worth, dot, sum);
    __asm__("" : "+r"(at));  // or what both halves read is kept, and there is no room for it
    half<1>(at, u, codes + 16, scales, cells, cell, ldx, worth, dot, sum);
  }

  template <int h>
  __attribute__((always_inline)) static void half(const char* at, int u, const char* codes, const char* scales,
                                                  size_t cells, size_t cell, size_t ldx, const Worth<Ops>* worth,
                                                  Ints (&dot)[R][kSpan], Floats (&sum)[R][kUnits]) {
    Ints line[kSpan * 4];
    for (int s = 0; s < kSpan; ++s) take_lines<f.bits, Ops>(at, (u + s) * Ops::kWidth * 4, h, line + 4 * s);
    for (int r = 0; r < R; ++r, codes += ldx, scales += ldx) {
      __asm__("" : "+r"(codes), "+r"(scales));  // nor for the address of every row
      if (f.parts == 2 || h == 0)
        for (int s = 0; s < kSpan; ++s) dot[r][s] = In::start(scales, cells, cell, h);
      Ops::template dot<f.bits, kSpan, 4>(line, codes, dot[r]);
      if (f.parts == 2 || h == 1)
        for (int s = 0; s < kSpan; ++s) In::add(worth[s], scales, cells, f.parts == 2 ? h : 0, dot[r][s], sum[r][u + s]);
    }
  }
};

// y[r][0..32) over all cells of two blocks, which share what is read of the inputs, for any number of rows. Their sums
// wait in memory: a cell's lines take half of 32 registers.
template <class Ops, int kKind>
void pair(const char* w, size_t block, size_t cells, const char* x, size_t ldx, int rows, float* y, size_t ldy,
          ptrdiff_t far) {
  constexpr Form f = form(kKind);
  using Ints = typename Ops::Ints;
  using In = Input<Ops, kKind>;
  const char* const begin = w;
  alignas(64) float sums[kMaxRows][2 * kLanes];
  __builtin_memset(sums, 0, rows * sizeof *sums);
  for (size_t at = 0; at < cells; at += f.cells(), w += f.group()) {
    // Where a block ends, its stream goes on in the pair that follows.
    const size_t reach = w - begin + kAhead;
    const ptrdiff_t ahead = far ? far : kAhead + (reach < block ? 0 : block);
    for (size_t c = 0; c < f.cells(); ++c) {
      Ints low[8], high[8];
      Worth<Ops> worth[2];
      for (int b = 0; b < 2; ++b) {
        const char* lines = w + b * block + f.head() + c * f.lines() * 64;
        fetch<kKind>(w + b * block, c, ahead);
        take_lines<f.bits, Ops>(lines, 0, 0, low + 4 * b);
        take_lines<f.bits, Ops>(lines, 0, 1, high + 4 * b);
        worth[b] = take_worth<kKind, Ops>(w + b * block, c, 0);
      }
      const char *codes = x + (at + c) * kCell, *scales = x + cells * kCell + (at + c) * 4;
#pragma GCC unroll 1
      for (int r = 0; r < rows; ++r, codes += ldx, scales += ldx) {
        Ints first[2], second[2];
        for (int b = 0; b < 2; ++b) {
          first[b] = In::start(scales, cells, at + c, 0);
          second[b] = f.parts == 2 ? In::start(scales, cells, at + c, 1) : Ops::all(int32_t(0));
        }
        Ops::template dot<f.bits, 2, 4>(low, codes, first);
        Ops::template dot<f.bits, 2, 4>(high, codes + 16, second);
        for (int b = 0; b < 2; ++b) {
          auto sum = Ops::sums(sums[r] + b * kLanes);
          In::add(worth[b], scales, cells, 0, f.parts == 2 ? first[b] : Ops::plus(first[b], second[b]), sum);
          if (f.parts == 2) In::add(worth[b], scales, cells, 1, second[b], sum);
          Ops::store(sums[r] + b * kLanes, sum);
        }
      }
    }
  }
  for (int r = 0; r < rows; ++r) __builtin_memcpy(y + r * ldy, sums[r], sizeof *sums);
}

// Groups of as few rows as need no more groups; the last may repeat rows of the one before, whose bits are the same.
template <class Ops, int kKind, int R = Ops::kRows>
void multiply(const char* w, size_t blocks, size_t cells, const char* x, size_t ldx, int rows, float* y, size_t ldy,
              ptrdiff_t far) {
  const size_t block = block_bytes(kKind, cells);
  if constexpr (Ops::kPairs && R == Ops::kRows)
    if (rows > R)
      for (; blocks > 1; blocks -= 2, w += 2 * block, y += 2 * kLanes)
        pair<Ops, kKind>(w, block, cells, x, ldx, rows, y, ldy, far);
  const int groups = (rows + Ops::kRows - 1) / Ops::kRows;
  if ((rows + groups - 1) / groups != R) {
    if constexpr (R > 1) multiply<Ops, kKind, R - 1>(w, blocks, cells, x, ldx, rows, y, ldy, far);
    return;
  }
  for (size_t b = 0; b < blocks; ++b, w += block, y += kLanes)
    for (int r = 0; r < rows; r += R) {
      const int from = r + R <= rows ? r : rows - R;
      Tile<Ops, kKind, R>::run(w, cells, x + from * ldx, ldx, y + from * ldy, ldy, r ? 0 : far ? far : kAhead);
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

template <class E, int n>
struct Lanes {
  typedef E Type __attribute__((vector_size(n * sizeof(E))));
};

// The lanes of v brought together in halves.
template <class E, int n, class Join>
__attribute__((always_inline)) inline E across(const typename Lanes<E, n>::Type& v, Join join) {
  if constexpr (n == 1) {
    return v[0];
  } else {
    typename Lanes<E, n / 2>::Type half[2];
    __builtin_memcpy(half, &v, sizeof v);
    return across<E, n / 2>(join(half[0], half[1]), join);
  }
}

// Writes cell number `cell` of a row. Without contraction or reassociation every tier has the same bits here.
template <class Ops>
__attribute__((always_inline)) inline void code_cell(const float* in, size_t cell, size_t cells, char* row) {
  constexpr int kWidth = Ops::kWidth, kParts = kCell / kWidth;
  using Values = typename Lanes<float, kWidth>::Type;
  using Codes = typename Lanes<int32_t, kWidth>::Type;
  Values value[kParts];
  for (int i = 0; i < kParts; ++i) value[i] = (Values)Ops::load(reinterpret_cast<const char*>(in + i * kWidth));
  Codes size = {};  // sizes compare as their bits do, and what is no number is above them all
  for (const Values& part : value) {
    const Codes one = (Codes)part & 0x7fffffff;
    size = one > size ? one : size;
  }
  const int32_t most = across<int32_t, kWidth>(size, [](const auto& a, const auto& b) { return a > b ? a : b; });
  float largest;
  __builtin_memcpy(&largest, &most, 4);
  const bool number = most < 0x7f800000, some = number && largest > 1e-30f;
  const float scale = some ? largest * (1 / 127.0f) : number ? 0.0f : __builtin_nanf("");
  const float by = some ? 127.0f / largest : 0.0f;
  typename Ops::Ints codes[kParts];
  Codes sums[2] = {};
  for (int i = 0; i < kParts; ++i) {
    const Values scaled = (number ? value[i] : Values{}) * by;
    const Codes code = (Codes)(scaled + 12582912.0f) - 0x4b400000;  // 1.5 * 2^23: rounds to an integer
    sums[i / (kParts / 2)] += code;
    codes[i] = (typename Ops::Ints)code;
  }
  Ops::pack(codes, row + cell * kCell);
  int32_t sum[2];
  for (int i = 0; i < 2; ++i) sum[i] = across<int32_t, kWidth>(sums[i], [](const auto& a, const auto& b) { return a + b; });
  const int32_t minus = -(sum[0] + sum[1]), halves[2] = {-sum[0], -sum[1]};
  const float both = scale * static_cast<float>(sum[0] + sum[1]);
  char* after = row + cells * kCell + cell * 4;
  __builtin_memcpy(after, &scale, 4);
  __builtin_memcpy(after + cells * 4, &both, 4);
  __builtin_memcpy(after + cells * 8, &minus, 4);
  for (int i = 0; i < 2; ++i) __builtin_memcpy(after + cells * 12 + cell * 4 + i * 4, &halves[i], 4);
}

template <class Ops>
void quantise(const float* in, size_t n, size_t first, size_t end, size_t cells, char* row) {
  size_t cell = first;
  for (; cell < end && n >= kCell; ++cell, in += kCell, n -= kCell) code_cell<Ops>(in, cell, cells, row);
  for (; cell < end; ++cell, n = 0) {
    float rest[kCell] = {};
    for (size_t i = 0; i < n; ++i) rest[i] = in[i];
    code_cell<Ops>(rest, cell, cells, row);
  }
}
