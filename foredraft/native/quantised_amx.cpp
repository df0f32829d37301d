// AMX int8 tiles: 16 rows of inputs by a cell. Flags: those of quantised_avx512.cpp, -mamx-tile -mamx-int8.
#include "quantised.h"

#if defined(__AVX512VNNI__)
#include <immintrin.h>
#endif

#if defined(FD_TILES)  // a test's emulation of the tile instructions
#include FD_TILES
#define FD_HAVE_TILES
#elif defined(__AMX_TILE__) && defined(__AMX_INT8__) && defined(__AVX512VNNI__)
#define FD_HAVE_TILES
#endif

namespace foredraft {

#if defined(FD_HAVE_TILES)
namespace {

#include "quantised_matmul.h"

#if defined(__AVX512VNNI__)
#include "quantised_avx512.h"
const BlockKernels* base() { return block_kernels_avx512(); }
#else
#include "quantised_portable.h"
const BlockKernels* base() { return block_kernels_portable(); }
#endif

// Fewer rows are the base's, whose bits are the same: the integers are exact, and the rest is its own steps.
struct Tiled : Ops {
  static constexpr int kLeast = 9, kRows = 16;
  static constexpr bool kFlips = true, kPairs = false;
};

struct Configuration {
  uint8_t palette, start, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

// Tiles 0 to 3: sums, of two cells in turn and the two halves of each; 4, 5: inputs; 6, 7: weights. Done in every call,
// for another library in this thread may configure them in its own way.
void configure(int rows, int parts) {
  alignas(64) Configuration tiles = {};
  tiles.palette = 1;
  for (int t = 0; t < 8; ++t) {
    tiles.row_bytes[t] = static_cast<uint16_t>(t == 4 || t == 5 ? kCell / parts : 64);
    tiles.rows[t] = static_cast<uint8_t>(t > 5 ? 8 / parts : rows);
  }
  __asm__ volatile("" ::: "memory");  // compilers' tile instructions do not say how much they read
  _tile_loadconfig(&tiles);
}

// Tiles are named by digits, which templates cannot give.
#define FD_PRODUCT(sums, inputs, weights, x, ldx, w, to) \
  _tile_zero(sums);                                      \
  _tile_loadd(inputs, x, ldx);                           \
  _tile_loadd(weights, w, 64);                           \
  _tile_dpbsud(sums, inputs, weights);                   \
  _tile_stored(sums, to, 64)

// The sums of a cell are on their way through memory while those of the one before are scaled.
template <int kKind, int R>
struct Tile<Tiled, kKind, R> {
  static constexpr Form f = form(kKind);
  static constexpr int kUnits = kLanes / Ops::kWidth;
  using Sums = Ops::Floats[R][kUnits];
  using In = Input<Tiled, kKind>;

  struct Block {
    const char* w;
    size_t cells;
    const char* x;
    size_t ldx;
    ptrdiff_t ahead;
    alignas(64) char lines[2][512];
    alignas(64) int32_t dots[2][2][16][kLanes];  // [cell of two][part][row][column]

    const char* group(size_t cell) const { return w + cell / f.cells() * f.group(); }
  };

  template <int kTurn>
  __attribute__((always_inline)) static void take(Block& b, size_t cell) {
    const size_t within = cell % f.cells();
    const char *at = b.group(cell) + f.head() + within * f.lines() * 64, *x = b.x + cell * kCell;
    fetch<kKind>(b.group(cell), within, b.ahead);
    char* lines = b.lines[kTurn];
    for (int u = 0; u < kUnits; ++u)
      for (int h = 0; h < 2; ++h) {
        Ops::Ints line[4];
        take_lines<f.bits, Tiled>(at, u * Ops::kWidth * 4, h, line);
        for (int i = 0; i < 4; ++i) __builtin_memcpy(lines + (4 * h + i) * 64 + u * Ops::kWidth * 4, &line[i], sizeof *line);
      }
    __asm__ volatile("" ::: "memory");
    if constexpr (kTurn == 0) {
      FD_PRODUCT(0, 4, 6, x, b.ldx, lines, b.dots[0][0]);
      if constexpr (f.parts == 2) {
        FD_PRODUCT(2, 4, 6, x + 16, b.ldx, lines + 256, b.dots[0][1]);
      }
    } else {
      FD_PRODUCT(1, 5, 7, x, b.ldx, lines, b.dots[1][0]);
      if constexpr (f.parts == 2) {
        FD_PRODUCT(3, 5, 7, x + 16, b.ldx, lines + 256, b.dots[1][1]);
      }
    }
  }

  __attribute__((always_inline)) static void add(const Block& b, int turn, size_t cell, Sums& sum) {
    for (int u = 0; u < kUnits; ++u) {
      const Worth<Tiled> worth = take_worth<kKind, Tiled>(b.group(cell), cell % f.cells(), u);
      const char* scales = b.x + b.cells * kCell + cell * 4;
      for (int r = 0; r < R; ++r, scales += b.ldx)
        for (int p = 0; p < f.parts; ++p) {
          const char* dots = reinterpret_cast<const char*>(b.dots[turn][p][r] + u * Ops::kWidth);
          const auto dot = Ops::plus(Ops::load(dots), In::start(scales, b.cells, cell, p));
          In::add(worth, scales, b.cells, p, dot, sum[r][u]);
        }
    }
  }

  static void run(const char* w, size_t cells, const char* x, size_t ldx, float* y, size_t ldy, ptrdiff_t ahead) {
    Block b;
    b.w = w, b.cells = cells, b.x = x, b.ldx = ldx, b.ahead = ahead;
    Sums sum;
    for (int r = 0; r < R; ++r)
      for (int u = 0; u < kUnits; ++u) sum[r][u] = Ops::all(0.0f);
    take<0>(b, 0);
    for (size_t cell = 0; cell < cells; cell += 2) {
      take<1>(b, cell + 1);
      add(b, 0, cell, sum);
      if (cell + 2 < cells) take<0>(b, cell + 2);
      add(b, 1, cell + 1, sum);
    }
    for (int r = 0; r < R; ++r)
      for (int u = 0; u < kUnits; ++u) Ops::store(y + r * ldy + u * Ops::kWidth, sum[r][u]);
  }
};

void matmul_tiled(int kind, const char* w, size_t blocks, size_t cells, const char* x, size_t ldx, int rows, float* y,
                  size_t ldy, ptrdiff_t far) {
  if (rows < Tiled::kLeast) return base()->matmul(kind, w, blocks, cells, x, ldx, rows, y, ldy, far);
  const int groups = (rows + Tiled::kRows - 1) / Tiled::kRows;
  configure((rows + groups - 1) / groups, form(kind).parts);
  matmul<Tiled>(kind, w, blocks, cells, x, ldx, rows, y, ldy, far);
  _tile_release();
}

}  // namespace

const BlockKernels* block_kernels_amx() {
  if (!base()) return nullptr;
  static const BlockKernels table = {"amx", matmul_tiled, quantise<Ops>};
  return &table;
}

#else

const BlockKernels* block_kernels_amx() { return nullptr; }

#endif

}  // namespace foredraft
