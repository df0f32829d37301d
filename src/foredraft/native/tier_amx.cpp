// AMX bf16 tiles; everything else is the avx512 tier's. Flags: those of tier_avx512.cpp, -mamx-tile -mamx-bf16.
#include "kernels.h"

#if defined(FD_TILES)  // a test's emulation of the tile instructions
#include FD_TILES
#define FD_HAVE_TILES
#elif defined(__AMX_TILE__) && defined(__AMX_BF16__)
#include <immintrin.h>
#define FD_HAVE_TILES
#endif

namespace foredraft {

#if defined(FD_HAVE_TILES)
namespace {

constexpr size_t kTile = 512;    // bf16 weights of one tile: 32 inputs, 16 columns
constexpr size_t kRun = 8;       // blocks that go through the inputs' chunks together
constexpr size_t kAhead = 8192;  // bytes of a block that are on their way

struct Configuration {
  uint8_t palette, start, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

// Tiles 0, 1: sums of the first row tile for two blocks; 2, 3: of the second; 4, 5: inputs; 6, 7: weights. Done in
// every call, for another library in this thread may configure them in its own way.
void configure(int rows) {
  const int first = rows < 16 ? rows : 16, second = rows > 16 ? rows - 16 : 1;
  alignas(64) Configuration tiles = {};
  tiles.palette = 1;
  for (int t = 0; t < 8; ++t) {
    tiles.row_bytes[t] = 64;
    tiles.rows[t] = static_cast<uint8_t>(t > 5 ? 16 : t == 2 || t == 3 || t == 5 ? second : first);
  }
  __asm__ volatile("" ::: "memory");  // compilers' tile instructions do not say how much they read
  _tile_loadconfig(&tiles);
}

// A stretch of inputs for one or two row tiles (T) and blocks (C).
struct Piece {
  const uint16_t* w;  // block c at w + c * block
  size_t block, depth;
  const uint16_t* next;  // of the piece to come; null: this one is in the cache
  ptrdiff_t far;         // where to fetch instead, or 0
  const uint16_t* x;
  size_t ldx;
  float *partial, *y;  // sums so far, [2 row tiles][2 blocks][16][16]; y where these are the last inputs
  size_t ldy;
  bool first, last;
};

template <int T, int C>
void multiply(const Piece& p) {
  const size_t from = 2 * p.ldx, length = p.depth * 16;
  if (p.first) {
    _tile_zero(0);
    if constexpr (C == 2) _tile_zero(1);
    if constexpr (T == 2) _tile_zero(2);
    if constexpr (T == 2 && C == 2) _tile_zero(3);
  } else {
    _tile_loadd(0, p.partial, 64);
    if constexpr (C == 2) _tile_loadd(1, p.partial + 256, 64);
    if constexpr (T == 2) _tile_loadd(2, p.partial + 512, 64);
    if constexpr (T == 2 && C == 2) _tile_loadd(3, p.partial + 768, 64);
  }
  for (size_t at = 0; at < length; at += kTile) {
    const uint16_t *w = p.w + at, *x = p.x + at / 16;
    if (p.next) {
      const size_t soon = at + kAhead / 2;
      const uint16_t* line = p.far ? w + p.far : soon < length ? p.w + soon : p.next + (soon - length);
      for (size_t i = 0; i < kTile; i += 32)
        for (int c = 0; c < C; ++c) __builtin_prefetch(line + c * p.block + i);
    }
    _tile_loadd(4, x, from);
    _tile_loadd(6, w, 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (C == 2) {
      _tile_loadd(7, w + p.block, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (T == 2) {
      _tile_loadd(5, x + 16 * p.ldx, from);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (C == 2) _tile_dpbf16ps(3, 5, 7);
    }
  }
  float* to = p.last ? p.y : p.partial;
  const size_t stride = p.last ? 4 * p.ldy : 64, right = p.last ? 16 : 256, below = p.last ? 16 * p.ldy : 512;
  _tile_stored(0, to, stride);
  if constexpr (C == 2) _tile_stored(1, to + right, stride);
  if constexpr (T == 2) _tile_stored(2, to + below, stride);
  if constexpr (T == 2 && C == 2) _tile_stored(3, to + below + right, stride);
}

// Up to 32 rows at once; more are two groups of the same size, which may share a row. Inputs of more than one row tile
// go in chunks, for they and the chunk's weights to stay in the first-level cache; sums wait in `partial` between them.
void matmul_bf16(const uint16_t* w, size_t blocks, size_t k, const uint16_t* x, size_t ldx, int rows, float* y,
                 size_t ldy, ptrdiff_t far) {
  const int groups = rows > 32 ? 2 : 1, height = (rows + groups - 1) / groups;
  const size_t chunk = rows <= 16 ? k : rows <= 32 ? 384 : 192;
  alignas(64) float partial[kRun / 2][2][4 * 256];
  configure(height);
  for (size_t b = 0; b < blocks; b += kRun) {
    const size_t end = b + kRun < blocks ? b + kRun : blocks;
    for (size_t at = 0; at < k; at += chunk)
      for (size_t c = b; c < end; c += 2) {
        const size_t depth = at + chunk < k ? chunk : k - at, then = c + 2 < end ? c + 2 : at + chunk < k ? b : end;
        for (int g = 0; g < groups; ++g) {
          const size_t row = g ? rows - height : 0;
          Piece p = {w + c * k * 16 + at * 16, k * 16, depth, nullptr, far / 2, x + row * ldx + at, ldx,
                     partial[(c - b) / 2][g], y + row * ldy + c * 16, ldy, at == 0, at + depth == k};
          if (!g) p.next = w + then * k * 16 + (then > c ? then == end ? 0 : at : at + chunk) * 16;
          const bool two = c + 1 < end;
          (height > 16 ? two ? multiply<2, 2> : multiply<2, 1> : two ? multiply<1, 2> : multiply<1, 1>)(p);
        }
      }
  }
  _tile_release();
}

}  // namespace

const Kernels* kernels_amx() {
#if defined(FD_TILES)
  const Kernels* base = kernels_portable();
#else
  const Kernels* base = kernels_avx512();
#endif
  if (!base) return nullptr;
  static const Kernels table = {"amx", matmul_bf16, base->matmul_f32, base->narrow, base->rms_norm, base->gate,
                                base->softmax_exp, base->maximum, base->add, base->soft_cap};
  return &table;
}

#else

const Kernels* kernels_amx() { return nullptr; }

#endif

}  // namespace foredraft
