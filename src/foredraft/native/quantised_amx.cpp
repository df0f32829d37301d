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

constexpr int kFew = 8;  // rows of the base, whose bits are the same: integers are exact, and the rest is its own steps

struct Tiled : Ops {
  static constexpr bool kFlips = true;
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

// One block of columns for up to 16 rows.
template <int kKind>
struct Columns {
  static constexpr Form f = form(kKind);
  static constexpr int kUnits = kLanes / Ops::kWidth;
  using In = Input<Tiled, kKind>;
  const char* w;
  size_t cells;
  const char* x;
  size_t ldx;
  int rows;
  ptrdiff_t ahead;
  alignas(64) char lines[2][512];
  alignas(64) int32_t dots[2][2][16][kLanes];  // [cell of two][part][row][column]
  alignas(64) float sums[16][kLanes];

  const char* group(size_t cell) const { return w + cell / f.cells() * f.group(); }

  template <int kTurn>
  __attribute__((always_inline)) void take(size_t cell) {
    const size_t within = cell % f.cells();
    const char *at = group(cell) + f.head() + within * f.lines() * 64, *codes = x + cell * kCell;
    fetch<kKind>(group(cell), within, ahead);
    char* to = lines[kTurn];
    for (int u = 0; u < kUnits; ++u)
      for (int h = 0; h < 2; ++h) {
        Ops::Ints line[4];
        take_lines<f.bits, Tiled>(at, u * Ops::kWidth * 4, h, line);
        for (int i = 0; i < 4; ++i) __builtin_memcpy(to + (4 * h + i) * 64 + u * Ops::kWidth * 4, &line[i], sizeof *line);
      }
    __asm__ volatile("" ::: "memory");
    if constexpr (kTurn == 0) {
      FD_PRODUCT(0, 4, 6, codes, ldx, to, dots[0][0]);
      if constexpr (f.parts == 2) {
        FD_PRODUCT(2, 4, 6, codes + 16, ldx, to + 256, dots[0][1]);
      }
    } else {
      FD_PRODUCT(1, 5, 7, codes, ldx, to, dots[1][0]);
      if constexpr (f.parts == 2) {
        FD_PRODUCT(3, 5, 7, codes + 16, ldx, to + 256, dots[1][1]);
      }
    }
  }

  __attribute__((always_inline)) void add(int turn, size_t cell) {
    for (int u = 0; u < kUnits; ++u) {
      const Worth<Tiled> worth = take_worth<kKind, Tiled>(group(cell), cell % f.cells(), u);
      const char* scales = x + cells * kCell + cell * 4;
      for (int r = 0; r < rows; ++r, scales += ldx) {
        float* to = sums[r] + u * Ops::kWidth;
        auto sum = Ops::sums(to);
        for (int p = 0; p < f.parts; ++p) {
          const char* dot = reinterpret_cast<const char*>(dots[turn][p][r] + u * Ops::kWidth);
          In::add(worth, scales, cells, p, Ops::plus(Ops::load(dot), In::start(scales, cells, cell, p)), sum);
        }
        Ops::store(to, sum);
      }
    }
  }

  // The products of a cell are on their way through memory while those of the one before are scaled.
  void run() {
    __builtin_memset(sums, 0, sizeof sums);
    take<0>(0);
    for (size_t cell = 0; cell < cells; cell += 2) {
      take<1>(cell + 1);
      add(0, cell);
      if (cell + 2 < cells) take<0>(cell + 2);
      add(1, cell + 1);
    }
  }
};

template <int kKind = kFirstKind>
void multiply_tiled(int kind, const char* w, size_t blocks, size_t cells, const char* x, size_t ldx, int rows, int height,
                    float* y, size_t ldy, ptrdiff_t far) {
  if (kind != kKind) {
    if constexpr (kKind + 1 < kFirstKind + kKinds)
      multiply_tiled<kKind + 1>(kind, w, blocks, cells, x, ldx, rows, height, y, ldy, far);
    return;
  }
  Columns<kKind> columns;
  columns.cells = cells, columns.ldx = ldx, columns.rows = height;
  for (size_t b = 0; b < blocks; ++b, w += block_bytes(kKind, cells), y += kLanes)
    for (int r = 0; r < rows; r += height) {
      const int from = r + height <= rows ? r : rows - height;
      columns.w = w, columns.x = x + from * ldx, columns.ahead = r ? 0 : far ? far : kAhead;
      columns.run();
      for (int i = 0; i < height; ++i) __builtin_memcpy(y + (from + i) * ldy, columns.sums[i], sizeof columns.sums[i]);
    }
}

// Groups of rows as those of `multiply`.
void matmul_tiled(int kind, const char* w, size_t blocks, size_t cells, const char* x, size_t ldx, int rows, float* y,
                  size_t ldy, ptrdiff_t far) {
  if (rows <= kFew) return base()->matmul(kind, w, blocks, cells, x, ldx, rows, y, ldy, far);
  const int groups = (rows + 15) / 16, height = (rows + groups - 1) / groups;
  configure(height, form(kind).parts);
  multiply_tiled(kind, w, blocks, cells, x, ldx, rows, height, y, ldy, far);
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
