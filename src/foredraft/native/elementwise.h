// Elementwise code of every tier, as plain loops that the compiler turns into vectors of the tier's width. Included
// inside each tier's anonymous namespace, so nothing here is merged with code compiled for another instruction set; for
// the same reason no std:: templates. Without contraction or reassociation all tiers have the same bits here; a tier may
// bring its own softmax_exp.

inline float as_float(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t as_bits(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

// exp to about 1 ulp: 2^n * p(r) with |r| <= ln(2) / 2. Below -104 it is 0, above 89 infinity; NaN stays.
inline float exp_of(float x) {
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, held in the low bits
  const float shifted = x * 1.44269504f + magic;
  const float n = shifted - magic;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln(2) in two parts, the first product exact
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 0.5f;
  p = (p * r) * r + r + 1.0f;
  // In two factors, for n = 128 and for results below the smallest normal number.
  const int32_t power = static_cast<int32_t>(as_bits(shifted) - as_bits(magic));
  const int32_t half = power >> 1;
  return p * as_float(static_cast<uint32_t>(half + 127) << 23) *
         as_float(static_cast<uint32_t>(power - half + 127) << 23);
}

inline float tanh_of(float x) {
  const float size = x < 0.0f ? -x : x;
  const float far = 1.0f - 2.0f / (exp_of(size + size) + 1.0f);
  const float z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z + -5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z + -3.33332819422e-1f;
  const float near = (p * z) * x + x;
  return size < 0.625f ? near : x < 0.0f ? -far : far;
}

// Lanes of partial sums to one value, always in this order.
inline float sum_lanes(float* lane) {
  for (size_t width = kLanes / 2; width; width /= 2)
    for (size_t i = 0; i < width; ++i) lane[i] += lane[i + width];
  return lane[0];
}

void narrow(const float* __restrict in, size_t n, uint16_t* __restrict out) {
  for (size_t i = 0; i < n; ++i) {
    const uint32_t u = as_bits(in[i]);
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    out[i] = static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : rounded);
  }
}

void rms_norm(const float* in, const float* weight, size_t n, float eps, float* out) {
  float lane[kLanes] = {};
  const size_t whole = n / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes)
    for (size_t l = 0; l < kLanes; ++l) lane[l] += in[i + l] * in[i + l];
  for (size_t i = whole; i < n; ++i) lane[i - whole] += in[i] * in[i];
  const float scale = 1.0f / __builtin_sqrtf(sum_lanes(lane) / static_cast<float>(n) + eps);
  for (size_t i = 0; i < n; ++i) out[i] = in[i] * scale * weight[i];
}

// gelu: x * (1 + tanh(u)) / 2 = x / (1 + exp(-2 u)).
void gate(const float* g, const float* up, size_t n, int act, float* out) {
  if (act == 0)
    for (size_t i = 0; i < n; ++i) out[i] = g[i] / (1.0f + exp_of(-g[i])) * up[i];
  else
    for (size_t i = 0; i < n; ++i) {
      const float u = 0.7978845608f * (g[i] + 0.044715f * (g[i] * g[i] * g[i]));
      out[i] = g[i] / (1.0f + exp_of(-2.0f * u)) * up[i];
    }
}

[[maybe_unused]] float softmax_exp(float* s, size_t n, float max) {
  for (size_t i = 0; i < n; ++i) s[i] = exp_of(s[i] - max);
  float lane[kLanes] = {};
  const size_t whole = n / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes)
    for (size_t l = 0; l < kLanes; ++l) lane[l] += s[i + l];
  for (size_t i = whole; i < n; ++i) lane[i - whole] += s[i];
  return sum_lanes(lane);
}

// In the tier's widest registers: loops over an array of lanes took five times as long here.
float maximum(const float* s, size_t n) {
#if defined(__AVX512F__)
  constexpr size_t kWidth = 16;
#elif defined(__AVX__)
  constexpr size_t kWidth = 8;
#else
  constexpr size_t kWidth = 4;
#endif
  typedef float Wide __attribute__((vector_size(4 * kWidth)));
  Wide top = {};
  top += s[0];
  size_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    Wide x;
    __builtin_memcpy(&x, s + i, sizeof x);
    top = x > top ? x : top;
  }
  float most = s[0];
  for (size_t l = 0; l < kWidth; ++l) most = top[l] > most ? top[l] : most;
  for (; i < n; ++i) most = s[i] > most ? s[i] : most;
  return most;
}

void add(float* __restrict y, const float* __restrict x, size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] += x[i];
}

void soft_cap(float* s, size_t n, float cap) {
  for (size_t i = 0; i < n; ++i) s[i] = cap * tanh_of(s[i] / cap);
}
