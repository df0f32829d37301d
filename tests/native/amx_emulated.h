// The tile instructions that the amx tier uses, in plain C++, with the checks a processor makes. For tests.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace emulated {

struct Tiles {
  int rows[8], width[8];  // width: bytes of a row
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
    const int rows = bytes[48 + t];
    require(t < 8 ? row_bytes >= 4 && row_bytes <= 64 && row_bytes % 4 == 0 && rows >= 1 && rows <= 16 : !row_bytes && !rows);
    if (t < 8) tiles.rows[t] = rows, tiles.width[t] = row_bytes;
  }
  std::memset(tiles.data, 0, sizeof tiles.data);
}

inline void load(int t, const void* base, size_t stride) {
  require(tiles.rows[t] > 0);
  std::memset(tiles.data[t], 0, sizeof tiles.data[t]);
  for (int r = 0; r < tiles.rows[t]; ++r) 
    std::memcpy(tiles.data[t][r], static_cast<const char*>(base) + r * stride, tiles.width[t]);
}

inline void store(int t, void* base, size_t stride) {
  require(tiles.rows[t] > 0);
  for (int r = 0; r < tiles.rows[t]; ++r) 
    std::memcpy(static_cast<char*>(base) + r * stride, tiles.data[t][r], tiles.width[t]);
}

inline void require_product(int c, int a, int b) {
  require(tiles.rows[c] == tiles.rows[a] && tiles.width[c] == tiles.width[b] && tiles.width[a] == 4 * tiles.rows[b]);
}

// Even and odd inputs are summed apart, each in order, and their sum is added to the tile.
inline void multiply(int c, int a, int b) {
  require_product(c, a, b);
  for (int m = 0; m < tiles.rows[c]; ++m)
    for (int n = 0; n < tiles.width[c] / 4; ++n) {
      float even = 0, odd = 0, sum;
      for (int k = 0; k < tiles.rows[b]; ++k) {
        const uint32_t x = tiles.data[a][m][k], w = tiles.data[b][k][n];
        even += widen(x << 16) * widen(w << 16);
        odd += widen(x & 0xffff0000u) * widen(w & 0xffff0000u);
      }
      std::memcpy(&sum, &tiles.data[c][m][n], sizeof sum);
      sum += even + odd;
      std::memcpy(&tiles.data[c][m][n], &sum, sizeof sum);
    }
}

// Four products of signed and unsigned bytes at a time; nothing saturates.
inline void multiply_bytes(int c, int a, int b) {
  require_product(c, a, b);
  for (int m = 0; m < tiles.rows[c]; ++m)
    for (int n = 0; n < tiles.width[c] / 4; ++n)
      for (int k = 0; k < tiles.rows[b]; ++k)
        for (int byte = 0; byte < 32; byte += 8) {
          const auto x = static_cast<int8_t>(tiles.data[a][m][k] >> byte);
          const auto w = static_cast<uint8_t>(tiles.data[b][k][n] >> byte);
          tiles.data[c][m][n] += static_cast<uint32_t>(x * w);
        }
}

}  // namespace emulated

#define _tile_loadconfig(from) emulated::load_configuration(from)
#define _tile_release() (void)std::memset(emulated::tiles.rows, 0, sizeof emulated::tiles.rows)
#define _tile_zero(t) (void)std::memset(emulated::tiles.data[t], 0, sizeof emulated::tiles.data[t])
#define _tile_loadd(t, base, stride) emulated::load(t, base, stride)
#define _tile_stored(t, base, stride) emulated::store(t, base, stride)
#define _tile_dpbf16ps(c, a, b) emulated::multiply(c, a, b)
#define _tile_dpbsud(c, a, b) emulated::multiply_bytes(c, a, b)
