// Products as the vector tiers share them. Included inside each tier's anonymous namespace, so that nothing here is
// merged with code compiled for another instruction set; for the same reason no std:: templates.
//
// A tier gives, for bf16 and for f32, an Op (64 bytes of a block and 4 bytes of x are a step in both):
//   Op::kRows, Op::columns(R): most rows of one tile of accumulators, and the blocks beside each other for R of them
//   Op::Sum: an accumulator, of some of a block's columns; its values at first are 0
//   Op::store(y, sum)
//   Op::line(at), Op::input(bits): the weights of a step for one accumulator, and the inputs of a row
//   Op::mac(sum, line, input): the accumulator after the step

constexpr size_t kLine = 64;
constexpr size_t kAhead = 8192;  // bytes, over the blocks that are read beside each other

// step(line) for every line of the block at w, in order, with P streams on their way. A stream of all C goes on in the
// next set of blocks where its own block ends.
template <int C, int P, class Step>
__attribute__((always_inline)) inline void each_line(const char* w, size_t block, ptrdiff_t ahead, Step step) {
  const char* const end = w + block;
  const char* until = P == C && size_t(ahead) < block ? end - ahead : end;
  for (;;) {
    for (; w < until; w += kLine) {
      for (int p = 0; p < P; ++p) __builtin_prefetch(w + p * block + ahead);
      step(w);
    }
    if (w == end) return;
    ahead += (C - 1) * block;
    until = end;
  }
}

// y[r][c] over all steps for R rows and C blocks. Block c + 1 lies 64 * steps bytes after block c. P streams of the
// same stride are fetched, from `ahead` bytes past w.
template <class Op, int R, int C, int P>
void tile(const char* w, size_t steps, const char* x, size_t ldx, float* y, size_t ldy, ptrdiff_t ahead) {
  using Sum = typename Op::Sum;
  constexpr int kParts = kLine / sizeof(Sum);
  Sum sum[R][C * kParts];
  for (int r = 0; r < R; ++r)
    for (int i = 0; i < C * kParts; ++i) sum[r][i] = Sum{};
  const size_t block = steps * kLine;
  const char* group[(R + 4) / 5];  // a base for every five rows: base + {0, 1, 2, 3, 4} * ldx are addressing modes
  for (int g = 0; g < (R + 4) / 5; ++g) group[g] = x + 5 * g * ldx;
  each_line<C, P>(w, block, ahead, [&](const char* at) {
    decltype(Op::line(at)) line[C * kParts];
    for (int i = 0; i < C * kParts; ++i) line[i] = Op::line(at + i / kParts * block + i % kParts * sizeof(Sum));
    for (int r = 0; r < R; ++r) {
      uint32_t bits;
      __builtin_memcpy(&bits, group[r / 5] + (r % 5) * ldx, sizeof bits);
      const auto input = Op::input(bits);
      for (int i = 0; i < C * kParts; ++i) sum[r][i] = Op::mac(sum[r][i], line[i], input);
    }
    for (int g = 0; g < (R + 4) / 5; ++g) group[g] += 4;
  });
  for (int r = 0; r < R; ++r)
    for (int i = 0; i < C * kParts; ++i) Op::store(y + r * ldy + i * (kLanes / kParts), sum[r][i]);
}

template <class Op, int R>
void multiply(const char* w, size_t blocks, size_t steps, const char* x, size_t ldx, int rows, float* y, size_t ldy,
              ptrdiff_t far) {
  constexpr int kColumns = Op::columns(R);
  const size_t block = steps * kLine;
  size_t b = 0;
  for (; b + kColumns <= blocks; b += kColumns) {
    const char* set = w + b * block;
    if (rows == R) {
      tile<Op, R, kColumns, kColumns>(set, steps, x, ldx, y + b * kLanes, ldy,
                                               far ? far : kAhead / kColumns);
      continue;
    }
    // More rows than accumulators: this set is read again from the cache, while the next one is fetched a block at a
    // time. The last group may repeat rows of the one before; their bits are the same.
    ptrdiff_t next = far ? far : kColumns * block;
    for (int r = 0; r < rows; r += R, next += block) {
      const int from = r + R <= rows ? r : rows - R;
      tile<Op, R, kColumns, 1>(set, steps, x + from * ldx, ldx, y + from * ldy + b * kLanes, ldy,
                                        r / R < kColumns ? next : 0);
    }
  }
  if constexpr (kColumns > 2)
    for (; b + 2 <= blocks && rows == R; b += 2)
      tile<Op, R, 2, 2>(w + b * block, steps, x, ldx, y + b * kLanes, ldy, far ? far : kAhead / 2);
  for (; b < blocks; ++b)
    for (int r = 0; r < rows; r += R) {
      const int from = r + R <= rows ? r : rows - R;
      tile<Op, R, 1, 1>(w + b * block, steps, x + from * ldx, ldx, y + from * ldy + b * kLanes, ldy,
                                  far ? far : block);
    }
}

// Tiles of the fewest rows that need no more groups: ceil(rows / ceil(rows / kRows)).
template <class Op, int R = Op::kRows>
void multiply_rows(const char* w, size_t blocks, size_t steps, const char* x, size_t ldx, int rows, float* y,
                   size_t ldy, ptrdiff_t far) {
  const int groups = (rows + Op::kRows - 1) / Op::kRows;
  if ((rows + groups - 1) / groups == R)
    multiply<Op, R>(w, blocks, steps, x, ldx, rows, y, ldy, far);
  else if constexpr (R > 1)
    multiply_rows<Op, R - 1>(w, blocks, steps, x, ldx, rows, y, ldy, far);
}

template <class Op, class T>
void matmul(const T* w, size_t blocks, size_t k, const T* x, size_t ldx, int rows, float* y, size_t ldy,
            ptrdiff_t far) {
  multiply_rows<Op>(reinterpret_cast<const char*>(w), blocks, k * sizeof(T) / 4, reinterpret_cast<const char*>(x),
                    ldx * sizeof(T), rows, y, ldy, far);
}
