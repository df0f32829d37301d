// The steps of a product in the compiler's vectors of 16 bytes. Included as quantised_matmul.h is, which says what they do.
struct Ops {
  typedef int32_t Ints __attribute__((vector_size(16)));
  typedef uint32_t Bits __attribute__((vector_size(16)));
  typedef int16_t Shorts __attribute__((vector_size(16)));
  typedef float Floats __attribute__((vector_size(16)));
  static constexpr int kWidth = 4, kRows = 2;
  static constexpr bool kFlips = false;
  template <class V>
  static V from(const char* at) {
    V value;
    __builtin_memcpy(&value, at, sizeof value);
    return value;
  }
  static Ints load(const char* at) { return from<Ints>(at); }
  static Ints all(int32_t value) { return Ints{} + value; }
  static Ints both(Ints a, Ints b) { return a | b; }
  static Ints mask(Ints v, int bits) { return v & bits; }
  template <int n>
  static Ints left(Ints v) {
    return (Ints)(n >= 0 ? (Bits)v << (n < 0 ? 0 : n) : (Bits)v >> (n < 0 ? -n : 0));
  }
#if defined(__ARM_FEATURE_DOTPROD)
  template <int kBits, int n>
  static Ints dot(const Ints* line, const char* x, Ints sum) {
    for (int i = 0; i < n; ++i)
      sum = (Ints)vdotq_s32((int32x4_t)sum, (int8x16_t)line[i], (int8x16_t)all(from<int32_t>(x + 4 * i)));
    return sum;
  }
#else
  // Two products of int16 a lane and line; as many lines as int16 holds: 8 * 2 * 15 * 127 = 30480 of 4 bits,
  // 4 * 2 * 31 * 127 = 31496 of 5, 2 * 2 * 63 * 127 = 32004 of 6, 2 * 128 * 127 = 32512 of 8.
  template <int kBits, int n>
  static Ints dot(const Ints* line, const char* x, Ints sum) {
    constexpr int kLines = kBits == 8 ? 1 : kBits == 6 ? 2 : kBits == 5 ? 4 : n;
    for (int i = 0; i < n; i += kLines) {
      Shorts some = {};
      for (int j = i; j < i + kLines; ++j) {
        const Shorts w = (Shorts)line[j], input = (Shorts)all(from<int32_t>(x + 4 * j));
        some += (w << 8 >> 8) * (input << 8 >> 8) + (w >> 8) * (input >> 8);
      }
      sum += ((Ints)some << 16 >> 16) + ((Ints)some >> 16);
    }
    return sum;
  }
#endif
  static Floats floats(Ints v) { return __builtin_convertvector(v, Floats); }
  // The smallest exponent of f16 has no leading bit: one is put there and taken away, exactly.
  static Floats halves(const char* at) {
    typedef uint16_t Halves __attribute__((vector_size(8)));
    const Bits half = __builtin_convertvector(from<Halves>(at), Bits), size = (half & 0x7fffu) << 13;
    const Bits small = (Bits)(size < 1u << 23), more = small & (113u << 23);
    const Floats value = (Floats)(size + (112u << 23) + (small & (1u << 23))) - (Floats)more;
    return (Floats)((Bits)value | (half & 0x8000u) << 16);
  }
  static Floats codes(const char* at) {
    typedef uint8_t Bytes __attribute__((vector_size(4)));
    return floats(__builtin_convertvector(from<Bytes>(at), Ints));
  }
  static Floats signed_codes(const char* at) {
    typedef int8_t Bytes __attribute__((vector_size(4)));
    return floats(__builtin_convertvector(from<Bytes>(at), Ints));
  }
  static Floats all(float value) { return Floats{} + value; }
  static Floats times(Floats a, Floats b) { return a * b; }
  static Floats add(Floats a, Floats b, Floats sum) { return sum + a * b; }
  static void store(float* y, Floats v) { __builtin_memcpy(y, &v, sizeof v); }
};
