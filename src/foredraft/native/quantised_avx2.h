// The steps of a product in registers of 32 bytes, all but the sums of integers. Included as quantised_matmul.h is.
struct Half {
  using Ints = __m256i;
  using Floats = __m256;
  static constexpr int kWidth = 8;
  static constexpr bool kPairs = false;
  static Ints load(const char* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); }
  static Ints all(int32_t value) { return _mm256_set1_epi32(value); }
  static Ints four(const char* x) {
    int32_t codes;
    __builtin_memcpy(&codes, x, 4);
    return all(codes);
  }
  static Ints both(Ints a, Ints b) { return _mm256_or_si256(a, b); }
  static Ints mask(Ints v, int bits) { return _mm256_and_si256(v, all(bits)); }
  template <int n>
  static Ints left(Ints v) {
    return n >= 0 ? _mm256_slli_epi32(v, n < 0 ? 0 : n) : _mm256_srli_epi32(v, n < 0 ? -n : 0);
  }
  static Floats floats(Ints v) { return _mm256_cvtepi32_ps(v); }
  static Floats halves(const char* at) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))); }
  static __m128i bytes(const char* at) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)); }
  static Floats codes(const char* at) { return floats(_mm256_cvtepu8_epi32(bytes(at))); }
  static Floats signed_codes(const char* at) { return floats(_mm256_cvtepi8_epi32(bytes(at))); }
  static Floats all(float value) { return _mm256_set1_ps(value); }
  static Floats times(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static Floats add(Floats a, Floats b, Floats sum) { return _mm256_fmadd_ps(a, b, sum); }
  static void pack(const Ints* codes, char* to) {
    const Ints pairs[2] = {_mm256_packs_epi32(codes[0], codes[1]), _mm256_packs_epi32(codes[2], codes[3])};
    const Ints order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packing goes on in both halves of a register
    const Ints bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(pairs[0], pairs[1]), order);
    _mm256_storeu_si256(reinterpret_cast<Ints*>(to), bytes);
  }
  static void store(float* y, Floats v) { _mm256_storeu_ps(y, v); }
};
