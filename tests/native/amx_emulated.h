// The tile instructions that tier_amx.cpp uses, in plain C++, with the checks a processor makes. For tests.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace emulated {

struct Tiles {
  int rows[8];
  uint32_t data[8][16][16];
};

inline thread_local Tiles tiles;

inline void require(bool fine) {
  if (!fine) std::abort();
}

inline float widen(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline void load_configuration(const void* from) {
  uint8_t bytes[64];
  std::memcpy(bytes, from, sizeof bytes);
  require(bytes[0] == 1 && bytes[1] == 0);
  for (int i = 2; i < 16; ++i) require(bytes[i] == 0);
  for (int t = 0; t < 16; ++t) {
    uint16_t row_bytes;
    std::memcpy(&row_bytes, bytes + 16 + 2 * t, sizeof row_bytes);
    require(t < 8 ? row_bytes == 64 && bytes[48 + t] >= 1 && bytes[48 + t] <= 16 : !row_bytes && !bytes[48 + t]);
    if (t < 8) tiles.rows[t] = bytes[48 + t];
  }
  std::memset(tiles.data, 0, sizeof tiles.data);
}

inline void load(int t, const void* base, size_t stride) {
  require(tiles.rows[t] > 0);
  std::memset(tiles.data[t], 0, sizeof tiles.data[t]);
  for (int r = 0; r < tiles.rows[t]; ++r) std::memcpy(tiles.data[t][r], static_cast<const char*>(base) + r * stride, 64);
}

inline void store(int t, void* base, size_t stride) {
  require(tiles.rows[t] > 0);
  for (int r = 0; r < tiles.rows[t]; ++r) std::memcpy(static_cast<char*>(base) + r * stride, tiles.data[t][r], 64);
}

// Even and odd inputs are summed apart, each in order, and their sum is added to the tile.
inline void multiply(int c, int a, int b) {
  require(tiles.rows[c] == tiles.rows[a] && tiles.rows[b] == 16);
  for (int m = 0; m < tiles.rows[c]; ++m)
    for (int n = 0; n < 16; ++n) {
      float even = 0, odd = 0, sum;
      for (int k = 0; k < 16; ++k) {
        const uint32_t x = tiles.data[a][m][k], w = tiles.data[b][k][n];
        even += widen(x << 16) * widen(w << 16);
        odd += widen(x & 0xffff0000u) * widen(w & 0xffff0000u);
      }
      std::memcpy(&sum, &tiles.data[c][m][n], sizeof sum);
      sum += even + odd;
      std::memcpy(&tiles.data[c][m][n], &sum, sizeof sum);
    }
}

}  // namespace emulated

#define _tile_loadconfig(from) emulated::load_configuration(from)
#define _tile_release() (void)std::memset(emulated::tiles.rows, 0, sizeof emulated::tiles.rows)
#define _tile_zero(t) (void)std::memset(emulated::tiles.data[t], 0, sizeof emulated::tiles.data[t])
#define _tile_loadd(t, base, stride) emulated::load(t, base, stride)
#define _tile_stored(t, base, stride) emulated::store(t, base, stride)
#define _tile_dpbf16ps(c, a, b) emulated::multiply(c, a, b)
