// The steps of a product in registers of 64 bytes. Included as quantised_matmul.h is, which says what they do.
struct Ops {
  using Ints = __m512i;
  using Floats = __m512;
  static constexpr int kWidth = 16, kRows = 6;
  static constexpr bool kFlips = true, kPairs = true;
  static Ints load(const char* at) { return _mm512_loadu_si512(at); }
  static Ints all(int32_t value) { return _mm512_set1_epi32(value); }
  static Ints both(Ints a, Ints b) { return _mm512_or_si512(a, b); }
  static Ints mask(Ints v, int bits) { return _mm512_and_si512(v, all(bits)); }
  static Ints flip(Ints v) { return _mm512_xor_si512(v, all(int(0x80808080u))); }
  template <int n>
  static Ints left(Ints v) {
    return n >= 0 ? _mm512_slli_epi32(v, n < 0 ? 0 : n) : _mm512_srli_epi32(v, n < 0 ? -n : 0);
  }
  static Ints plus(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
  template <int kBits, int kUnits, int kLines>
  static void dot(const Ints* line, const char* x, Ints* sum) {
    for (int i = 0; i < 4; ++i) {
      int32_t four;
      __builtin_memcpy(&four, x + 4 * i, 4);
      const Ints input = all(four);
      for (int u = 0; u < kUnits; ++u) sum[u] = _mm512_dpbusd_epi32(sum[u], line[u * kLines + i], input);
    }
  }
  static Floats floats(Ints v) { return _mm512_cvtepi32_ps(v); }
  static Floats halves(const char* at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  }
  static __m128i bytes(const char* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); }
  static Floats codes(const char* at) { return floats(_mm512_cvtepu8_epi32(bytes(at))); }
  static Floats signed_codes(const char* at) { return floats(_mm512_cvtepi8_epi32(bytes(at))); }
  static Floats all(float value) { return _mm512_set1_ps(value); }
  static Floats times(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats add(Floats a, Floats b, Floats sum) { return _mm512_fmadd_ps(a, b, sum); }
  static void pack(const Ints* codes, char* to) {
    for (int i = 0; i < 2; ++i)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to) + i, _mm512_cvtepi32_epi8(codes[i]));
  }
  static Floats sums(const float* at) { return _mm512_load_ps(at); }
  static void store(float* y, Floats v) { _mm512_storeu_ps(y, v); }
};
