// The walk over blocks and rows that the vector tiers share. Included inside each tier's anonymous namespace, so that
// nothing here is merged with code compiled for another instruction set; for the same reason no std:: templates.
//
// A tier gives, for an Op (bf16 or f32 weights; 64 bytes of them and 4 bytes of x a step in both):
//   Op::kRows, Op::columns(R): most rows of one tile of accumulators, and the blocks beside each other for R of them
//   Op::tile<R, C, P>(w, steps, x, ldx, y, ldy, ahead): y[r][c] over all steps for R rows and C blocks. Block c + 1
//   lies 64 * steps bytes after block c. P streams of the same stride are prefetched, from `ahead` bytes past w.

constexpr size_t kLine = 64;
constexpr size_t kAhead = 8192;  // bytes, over the blocks that are read beside each other

// step(line) for every line of the block at w, in order, with P streams on their way. A stream of all C goes on in the
// next set of blocks where its own block ends.
template <int C, int P, class Step>
__attribute__((always_inline)) inline void each_line(const char* w, size_t block, size_t ahead, Step step) {
  const char* const end = w + block;
  const char* until = P == C && ahead < block ? end - ahead : end;
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

template <class Op, int R>
void multiply(const char* w, size_t blocks, size_t steps, const char* x, size_t ldx, int rows, float* y, size_t ldy) {
  constexpr int kColumns = Op::columns(R);
  const size_t block = steps * kLine;
  size_t b = 0;
  for (; b + kColumns <= blocks; b += kColumns) {
    const char* set = w + b * block;
    if (rows == R) {
      Op::template tile<R, kColumns, kColumns>(set, steps, x, ldx, y + b * kLanes, ldy, kAhead / kColumns);
      continue;
    }
    // More rows than accumulators: this set is read again from the cache, while the next one is fetched a block at a
    // time. The last group may repeat rows of the one before; their bits are the same.
    size_t next = kColumns * block;
    for (int r = 0; r < rows; r += R, next += block) {
      const int from = r + R <= rows ? r : rows - R;
      Op::template tile<R, kColumns, 1>(set, steps, x + from * ldx, ldx, y + from * ldy + b * kLanes, ldy,
                                        r / R < kColumns ? next : 0);
    }
  }
  if constexpr (kColumns > 2)
    for (; b + 2 <= blocks && rows == R; b += 2)
      Op::template tile<R, 2, 2>(w + b * block, steps, x, ldx, y + b * kLanes, ldy, kAhead / 2);
  for (; b < blocks; ++b)
    for (int r = 0; r < rows; r += R) {
      const int from = r + R <= rows ? r : rows - R;
      Op::template tile<R, 1, 1>(w + b * block, steps, x + from * ldx, ldx, y + from * ldy + b * kLanes, ldy, block);
    }
}

// Tiles of the fewest rows that need no more groups: ceil(rows / ceil(rows / kRows)).
template <class Op, int R = Op::kRows>
void multiply_rows(const char* w, size_t blocks, size_t steps, const char* x, size_t ldx, int rows, float* y,
                   size_t ldy) {
  const int groups = (rows + Op::kRows - 1) / Op::kRows;
  if ((rows + groups - 1) / groups == R)
    multiply<Op, R>(w, blocks, steps, x, ldx, rows, y, ldy);
  else if constexpr (R > 1)
    multiply_rows<Op, R - 1>(w, blocks, steps, x, ldx, rows, y, ldy);
}

template <class Op>
void matmul_bf16(const uint16_t* w, size_t blocks, size_t k, const uint16_t* x, size_t ldx, int rows, float* y,
                 size_t ldy) {
  multiply_rows<Op>(reinterpret_cast<const char*>(w), blocks, k / 2, reinterpret_cast<const char*>(x), 2 * ldx, rows, y,
                    ldy);
}

template <class Op>
void matmul_f32(const float* w, size_t blocks, size_t k, const float* x, size_t ldx, int rows, float* y, size_t ldy) {
  multiply_rows<Op>(reinterpret_cast<const char*>(w), blocks, k, reinterpret_cast<const char*>(x), 4 * ldx, rows, y,
                    ldy);
}
