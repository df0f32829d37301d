// For any little-endian processor: the compiler's four-lane vectors, which it turns into whatever the target has.
#include "kernels.h"

namespace foredraft {
namespace {

#include "elementwise.h"
#include "matmul.h"

typedef float Four __attribute__((vector_size(16)));
typedef uint32_t FourBits __attribute__((vector_size(16)));

constexpr int kFours = kLanes / 4;

// Accumulators, inputs and a weight have to fit 16 registers, or the 32 of Arm.
template <class Mac>
struct Plain {
#if defined(__aarch64__)
  static constexpr int kRows = 4;
#else
  static constexpr int kRows = 2;
#endif
  static constexpr int columns(int) { return 1; }

  template <int R, int C, int P>
  static void tile(const char* w, size_t steps, const char* x, size_t ldx, float* y, size_t ldy, size_t ahead) {
    static_assert(C == 1, "one block at a time");
    Four sum[R][kFours] = {};
    each_line<C, P>(w, steps * kLine, ahead, [&](const char* at) {
      Mac::template step<R>(sum, at, x, ldx);
      x += 4;
    });
    for (int r = 0; r < R; ++r) __builtin_memcpy(y + r * ldy, sum[r], sizeof sum[r]);
  }
};

struct Bf16 {
  template <int R>
  static void step(Four (&sum)[R][kFours], const char* w, const char* x, size_t ldx) {
    float first[R], second[R];
    for (int r = 0; r < R; ++r) {
      uint32_t pair;
      __builtin_memcpy(&pair, x + r * ldx, sizeof pair);
      first[r] = as_float(pair << 16);
      second[r] = as_float(pair & 0xffff0000u);
    }
    for (int i = 0; i < kFours; ++i) {
      FourBits pairs;
      __builtin_memcpy(&pairs, w + 16 * i, sizeof pairs);
      const Four low = (Four)(pairs << 16), high = (Four)(pairs & 0xffff0000u);
      for (int r = 0; r < R; ++r) {
        sum[r][i] += low * first[r];
        sum[r][i] += high * second[r];
      }
    }
  }
};

struct F32 {
  template <int R>
  static void step(Four (&sum)[R][kFours], const char* w, const char* x, size_t ldx) {
    for (int r = 0; r < R; ++r) {
      float in;
      __builtin_memcpy(&in, x + r * ldx, sizeof in);
      for (int i = 0; i < kFours; ++i) {
        Four line;
        __builtin_memcpy(&line, w + 16 * i, sizeof line);
        sum[r][i] += line * in;
      }
    }
  }
};

const Kernels table = {"portable", matmul_bf16<Plain<Bf16>>, matmul_f32<Plain<F32>>, narrow, rms_norm, gate,
                       softmax_exp, maximum, add, soft_cap};

}  // namespace

const Kernels* kernels_portable() { return &table; }

}  // namespace foredraft
