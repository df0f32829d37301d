// For any little-endian processor: the compiler's four-lane vectors, which it turns into whatever the target has.
#include "kernels.h"

namespace foredraft {
namespace {

#include "elementwise.h"
#include "matmul.h"

// Accumulators, inputs and a weight have to fit 16 registers, or the 32 of Arm.
struct Plain {
  typedef float Sum __attribute__((vector_size(16)));
  typedef uint32_t Bits __attribute__((vector_size(16)));
#if defined(__aarch64__)
  static constexpr int kRows = 4;
#else
  static constexpr int kRows = 2;
#endif
  static constexpr int columns(int) { return 1; }
  static void store(float* y, Sum sum) { __builtin_memcpy(y, &sum, sizeof sum); }
  template <class V>
  static V load(const char* at) {
    V value;
    __builtin_memcpy(&value, at, sizeof value);
    return value;
  }
};

struct Bf16 : Plain {
  struct Line {
    Sum first, second;
  };
  struct Input {
    float first, second;
  };
  static Line line(const char* at) {
    const Bits pairs = load<Bits>(at);
    return {(Sum)(pairs << 16), (Sum)(pairs & 0xffff0000u)};
  }
  static Input input(uint32_t bits) { return {as_float(bits << 16), as_float(bits & 0xffff0000u)}; }
  static Sum mac(Sum sum, const Line& w, const Input& x) { return sum + w.first * x.first + w.second * x.second; }
};

struct F32 : Plain {
  static Sum line(const char* at) { return load<Sum>(at); }
  static float input(uint32_t bits) { return as_float(bits); }
  static Sum mac(Sum sum, Sum w, float x) { return sum + w * x; }
};

const Kernels table = {"portable", matmul<Bf16>, matmul<F32>, narrow, rms_norm, gate, softmax_exp,
                       maximum, add, soft_cap};

}  // namespace

const Kernels* kernels_portable() { return &table; }

}  // namespace foredraft
