// The steps of a product in the compiler's vectors of 16 bytes. Included as quantised_matmul.h is, which says what they do.
struct Ops {
  typedef int32_t Ints __attribute__((vector_size(16)));
  typedef uint32_t Bits __attribute__((vector_size(16)));
  typedef int16_t Shorts __attribute__((vector_size(16)));
  typedef float Floats __attribute__((vector_size(16)));
  static constexpr int kWidth = 4, kRows = 2;
  static constexpr bool kPairs = false;
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
  static Ints plus(Ints a, Ints b) { return a + b; }
  static Ints mask(Ints v, int bits) { return v & bits; }
  static Ints flip(Ints v) { return v ^ int(0x80808080u); }
  template <int n>
  static Ints left(Ints v) {
    return (Ints)(n >= 0 ? (Bits)v << (n < 0 ? 0 : n) : (Bits)v >> (n < 0 ? -n : 0));
  }
#if defined(__ARM_FEATURE_DOTPROD)
  template <int kBits, int kUnits, int kLines>
  static void dot(const Ints* line, const char* x, Ints* sum) {
    for (int i = 0; i < 4; ++i) {
      const int8x16_t input = (int8x16_t)all(from<int32_t>(x + 4 * i));
      for (int u = 0; u < kUnits; ++u)
        sum[u] = (Ints)vdotq_s32((int32x4_t)sum[u], (int8x16_t)line[u * kLines + i], input);
    }
  }
#else
  // Two products a lane of int16 and line, of as many lines as it holds: 4 * 2 * 31 * 127 = 31496 for 5 bits and fewer,
  // 2 * 2 * 63 * 127 = 32004 for 6, 2 * 128 * 127 = 32512 for 8.
  template <int kBits, int kUnits, int kLines>
  static void dot(const Ints* line, const char* x, Ints* sum) {
    constexpr int kSome = kBits == 8 ? 1 : kBits == 6 ? 2 : 4;
    for (int i = 0; i < 4; i += kSome) {
      Shorts some[kUnits] = {};
      for (int j = i; j < i + kSome; ++j) {
        const Shorts input = (Shorts)all(from<int32_t>(x + 4 * j)), even = input << 8 >> 8, odd = input >> 8;
        for (int u = 0; u < kUnits; ++u) {
          const Shorts w = (Shorts)line[u * kLines + j];
          some[u] += (w << 8 >> 8) * even + (w >> 8) * odd;
        }
      }
      for (int u = 0; u < kUnits; ++u) sum[u] += ((Ints)some[u] << 16 >> 16) + ((Ints)some[u] >> 16);
    }
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
  static Floats sums(const float* at) { return from<Floats>(reinterpret_cast<const char*>(at)); }
  static void pack(const Ints* codes, char* to) {
    for (size_t i = 0; i < kCell; ++i) to[i] = static_cast<char>(codes[i / 4][i % 4]);
  }
  static void store(float* y, Floats v) { __builtin_memcpy(y, &v, sizeof v); }
};
