// Laws and draws over rows of logits: the twins of law_of (core/sampling.py) and Noise.race (core/noise.py), fast.
//
// Plain loops over blocks of a row, compiled for three instruction sets, with no fused multiply-add, exponentials and
// logarithms of our own, and sums in a fixed order of lanes and blocks: every machine and thread gets the same bits.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "heads.h"

#define FD_INLINE static inline __attribute__((always_inline))

namespace {

constexpr int kBlock = 128, kBuckets = 2048;
constexpr double kNone = -HUGE_VAL, kLowest = std::numeric_limits<double>::lowest(), kMagic = 0x1.8p52;

template <class To, class From>
FD_INLINE To bits(From from) {
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// e^y for y from -inf to 0, within an ulp: y = k log 2 + r, and a polynomial of r.
FD_INLINE double exp_of(double y) {
  y = y > -746 ? y : -746;  // the next is 0
  const double k = (y * 0x1.71547652b82fep0 + kMagic) - kMagic;
  const double r = (y - k * 0x1.62e42fee00000p-1) - k * 0x1.a39ef35793c76p-33;
  double q = 0x1.af38a9b0ec855p-26 * r + 0x1.289185613a3d6p-22;
  q = ((q * r + 0x1.71de0dae63bb3p-19) * r + 0x1.a019b90d2ae7ap-16) * r + 0x1.a01a01a7c41d5p-13;
  q = ((q * r + 0x1.6c16c1788bd90p-10) * r + 0x1.11111111109b3p-7) * r + 0x1.5555555553d63p-5;
  q = (q * r + 0x1.5555555555556p-3) * r + 0x1.0000000000001p-1;
  const bool small = k < -1000;  // a power of two too small to be a normal number is made of two
  const double power = bits<double>((bits<uint64_t>((small ? k + 600 : k) + kMagic) + 1023) << 52);
  return (1 + (r + r * r * q)) * power * (small ? 0x1p-600 : 1.0);
}

// The natural logarithm of a positive normal number, within 2 ulp: x = m 2^k, log m = 2 artanh((m - 1) / (m + 1)).
double log_of(double x) {
  int k;
  double m = std::frexp(x, &k);
  if (m < 0x1.6a09e667f3bcdp-1) m *= 2, --k;
  const double s = (m - 1) / (m + 1), z = s * s;
  double series = 0;
  for (int n = 23; n >= 3; n -= 2) series = (series + 1.0 / n) * z;
  return k * 0x1.62e42fee00000p-1 + (2 * s + (2 * s * series + k * 0x1.a39ef35793c76p-33));
}

FD_INLINE double sum_of(const double* x) {
  double lanes[8] = {};
  for (int j = 0; j < kBlock; j += 8)
    for (int i = 0; i < 8; ++i) lanes[i] += x[j + i];
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

double warmth(const fd_law& law) { return std::max(law.temperature, 1e-30); }  // as `filtered` has it
int blocks(const fd_law& law) { return (law.size + kBlock - 1) / kBlock; }
bool barren(const fd_law& law, int b) { return law.tops[b] - law.peak < law.cut; }

// The logits of a block; the last one is filled up with tokens that are ruled out.
FD_INLINE void load(const fd_law& law, int b, double* x) {
  const int n = std::min(kBlock, law.size - b * kBlock);
  const double* wide = static_cast<const double*>(law.row) + b * kBlock;
  const float* narrow = static_cast<const float*>(law.row) + b * kBlock;
  for (int j = 0; j < n; ++j) x[j] = law.wide ? wide[j] : narrow[j];
  for (int j = n; j < kBlock; ++j) x[j] = kNone;
}

// 1 - u of the clocks of 2 n neighbouring tokens, exact: u has 53 bits. See Noise.clocks.
template <int n>
FD_INLINE void gaps_of(const fd_place& place, int first, double* gap) {  // a counter's four words serve a pair of tokens
  uint32_t c0[n], c1[n], c2[n], c3[n], k0 = uint32_t(place.seed), k1 = uint32_t(place.seed >> 32);
  for (int i = 0; i < n; ++i) c0[i] = first + i, c1[i] = 4, c2[i] = place.position, c3[i] = place.choice;
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u)
    for (int i = 0; i < n; ++i) {
      const uint64_t a = uint64_t{c0[i]} * 0xD2511F53u, m = uint64_t{c2[i]} * 0xCD9E8D57u;
      c0[i] = uint32_t(m >> 32) ^ c1[i] ^ k0, c1[i] = uint32_t(m);
      c2[i] = uint32_t(a >> 32) ^ c3[i] ^ k1, c3[i] = uint32_t(a);
    }
  constexpr uint64_t one = 0x4330000000000000u;  // 2^52, whose last bit is worth 1
  for (int i = 0; i < n; ++i) {
    const double even = bits<double>(one | uint64_t{c0[i] >> 6} << 26 | c1[i] >> 6) - 0x1p52;
    const double odd = bits<double>(one | uint64_t{c2[i] >> 6} << 26 | c3[i] >> 6) - 0x1p52;
    gap[2 * i] = 1 - (even + 0.5) * 0x1p-52, gap[2 * i + 1] = 1 - (odd + 0.5) * 0x1p-52;
  }
}

enum Op { kPeak, kWeigh, kRace };

struct Race {
  fd_place place;
  double best = HUGE_VAL, most[kBlock];
};

// kPeak: the largest logit of a block, NaN if one is. kWeigh: the weights into `out`, and their sum. kRace: how many
// tokens can ring before race->best: 1 - u, in `out`, is below -log u, and so at most best * weight, and that is below
// race->most: 2^f <= 1 + f, and the bits of a number give 2^k (1 + f) without a polynomial.
FD_INLINE double loops(Op op, const fd_law& law, int b, double* out, Race* race) {
  const double peak = law.peak, inverse = 1 / warmth(law), cut = law.cut;
  double x[kBlock], top[8];
  int count = 0;
  load(law, b, x);
  if (op == kPeak) {
    std::copy(x, x + 8, top);
    for (int j = 0; j < kBlock; j += 8)
      for (int i = 0; i < 8; ++i) top[i] = x[j + i] > top[i] ? x[j + i] : top[i];
    for (int j = 0; j < kBlock; ++j) count += x[j] != x[j];
    return count ? NAN : *std::max_element(top, top + 8);
  }
  if (op == kWeigh) {
    for (int j = 0; j < kBlock; ++j) out[j] = exp_of((x[j] - peak) * inverse);
    for (int j = 0; j < kBlock; ++j) out[j] = x[j] - peak >= cut ? out[j] : 0;
    return sum_of(out);
  }
  const double best = race->best;
  double able[kBlock];
  gaps_of<kBlock / 2>(race->place, b * (kBlock / 2), out);
  for (int j = 0; j < kBlock; ++j) {
    const double d = x[j] - peak, y = d * inverse;
    const double fixed = (y > -700 ? y : -700) * 0x1.71547652b82fep0 + 0x1.8p32;  // 20 bits after the point
    const double above = bits<double>((bits<uint64_t>(fixed) + (1023u << 20)) << 32) * 1.000001;
    able[j] = d >= cut ? best * above : 0;
  }
  for (int j = 0; j < kBlock; ++j) count += out[j] <= able[j];
  if (count) std::copy(able, able + kBlock, race->most);
  return count;
}

#define FD_LOOPS(name, attribute) \
  attribute double name(Op op, const fd_law& law, int b, double* out, Race* r) { return loops(op, law, b, out, r); }
FD_LOOPS(run_portable, )
#if defined(__x86_64__)
FD_LOOPS(run_avx2, __attribute__((target("avx2"))))
FD_LOOPS(run_avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))))
#endif

double run(Op op, const fd_law& law, int b, double* out = nullptr, Race* race = nullptr) {
#if defined(__x86_64__)
  static const bool avx512 = foredraft::find_tier("avx512"), avx2 = foredraft::find_tier("avx2");
  if (avx512 && law.narrow < 1) return run_avx512(op, law, b, out, race);
  if (avx2 && law.narrow < 2) return run_avx2(op, law, b, out, race);
#endif
  return run_portable(op, law, b, out, race);
}

// What a block's tokens weigh, unnormalised, into out [kBlock]; returns the sum.
double part(const fd_law& law, int b, double* out) {
  if (barren(law, b)) return std::fill_n(out, kBlock, 0.0), 0.0;
  double sum = run(kWeigh, law, b, out), q[kBlock];
  if (law.minus) part(*law.minus, b, q);
  for (int j = 0; law.minus && j < kBlock; ++j)
    out[j] = std::max(out[j] / law.scale - q[j] / law.minus->total, 0.0);
  for (int i = 0; i < law.withouts; ++i)
    if (law.without[i] / kBlock == b) out[law.without[i] % kBlock] = 0;
  return law.minus || law.withouts ? sum_of(out) : sum;
}

// The tokens no further than -bound below the peak: how far each lies from it, and its weight.
struct Near {
  std::vector<double> differences, weights;
  int n = 0;
  double sum = 0;

  void find(const fd_law& law, double bound) {
    fd_law them = law;
    them.cut = std::max({bound, law.cut, kLowest});
    differences.resize(std::max(differences.size(), size_t(blocks(law) + 1) * kBlock));
    weights.resize(differences.size());
    n = 0, sum = 0;
    double x[kBlock];
    for (int b = 0; b < blocks(law); ++b) {
      if (barren(them, b)) continue;
      load(law, b, x);
      for (double logit : x) differences[n] = logit - law.peak, n += differences[n] >= them.cut;
    }
    them.row = differences.data(), them.size = n, them.wide = 1, them.peak = 0, them.cut = kNone;
    for (int b = 0; b < blocks(them); ++b) sum += run(kWeigh, them, b, &weights[b * kBlock]);
  }

  // The difference of the last token of the smallest set that holds `mass`, ties with it included. Tokens are counted
  // into buckets between the peak and `bound`; only the bucket in which the set closes is sorted.
  double nucleus(double mass, double bound) const {
    double shares[kBuckets] = {}, held = 0;
    const auto bucket = [&](int i) { return std::min(int(differences[i] / bound * kBuckets), kBuckets - 1); };
    for (int i = 0; i < n; ++i) shares[bucket(i)] += weights[i];
    int at = 0, last = 0;
    for (int i = 0; i < n; ++i) last = std::max(last, bucket(i));
    while (at < last && held + shares[at] < mass) held += shares[at++];
    std::vector<std::pair<double, double>> there;
    for (int i = 0; i < n; ++i)
      if (bucket(i) == at) there.emplace_back(-differences[i], weights[i]);
    std::sort(there.begin(), there.end());
    size_t i = 0;
    while ((held += there[i].second) < mass && i + 1 < there.size()) ++i;
    while (i + 1 < there.size() && there[i + 1].second >= there[i].second) ++i;
    return -there[i].first;
  }
};

// Sums the weights block by block; of a residual that lacks some tokens only, the other blocks' sums are there already.
double total(const fd_law& law) {
  double sum = 0, block[kBlock];
  if (law.minus || !law.withouts)
    for (int b = 0; b < blocks(law); ++b) law.sums[b] = part(law, b, block);
  for (int i = 0; i < law.withouts; ++i)
    if (const int b = law.without[i] / kBlock; b < blocks(law)) law.sums[b] = part(law, b, block);
  for (int b = 0; b < blocks(law); ++b) sum += law.sums[b];
  return sum;
}

int make(fd_law& law) {
  law.peak = law.cut = kNone;
  for (int b = 0; b < blocks(law); ++b) {
    law.tops[b] = run(kPeak, law, b);
    if (!(law.tops[b] <= law.peak) && law.peak == law.peak) law.peak = law.tops[b];  // NaN stays
  }
  if (!std::isfinite(law.peak)) return 1;
  static thread_local Near near;
  const double warm = warmth(law), slack = 1e-9 * warm;
  near.n = 0;
  if (law.top_k > 0 && law.top_k < law.size) {
    for (double reach : {4.0, 8.0, 16.0, HUGE_VAL})
      if (near.n < law.top_k) near.find(law, -reach * warm);
    double *begin = near.differences.data(), *kth = begin + law.top_k - 1;
    if (near.n >= law.top_k) std::nth_element(begin, kth, begin + near.n, std::greater<double>()), law.cut = *kth;
  }
  if (law.top_p < 1) {
    near.sum = 0;  // tokens below (1 - p) / V hold less than 1 - p together: the set closes before any of them
    const double mass = total(law), share = log_of(mass * (1 - law.top_p) / law.size);
    const double least = std::max(warm * share - slack, kLowest);
    double bound = 0;
    for (double reach : {4.0, 8.0, HUGE_VAL})
      if (near.sum < mass * law.top_p * (1 + 1e-9)) near.find(law, bound = std::max(least, -reach * warm));
    law.cut = std::max(law.cut, near.nucleus(mass * law.top_p, bound));
  }
  if (law.min_p > 0) {
    near.find(law, warm * std::log(law.min_p) - slack);
    law.cut = 0;
    for (int i = 0; i < near.n; ++i)
      if (near.weights[i] >= law.min_p) law.cut = std::min(law.cut, near.differences[i]);
  }
  return 0;
}

}  // namespace

int fd_law_make(fd_law* law) {
  try {
    return law->size < 1 ? 1 : make(*law);
  } catch (const std::bad_alloc&) {
    return -1;
  }
}

double fd_law_total(fd_law* law) { return law->total = total(*law); }

double fd_law_at(const fd_law* law, int32_t token) {
  double block[kBlock];
  if (token < 0 || token >= law->size) return 0;
  part(*law, token / kBlock, block);
  return block[token % kBlock] / law->total;
}

void fd_law_dense(const fd_law* law, double* out) {
  double block[kBlock];
  for (int id = 0; id < law->size; ++id) {
    if (id % kBlock == 0) part(*law, id / kBlock, block);
    out[id] = block[id % kBlock] / law->total;
  }
}

int32_t fd_law_draw(const fd_law* law, double uniform) {
  const double point = uniform * law->total;
  double sum = 0, before = 0, block[kBlock];
  int last = 0, token = 0;
  for (int b = 0; b < blocks(*law) && sum <= point; ++b)
    if (law->sums[b] > 0) last = b, before = sum, sum += law->sums[b];
  part(*law, last, block);
  for (int j = 0; j < kBlock && before <= point; before += block[j++])
    if (block[j] > 0) token = j;
  return last * kBlock + token;
}

int32_t fd_law_race(const fd_law* law, fd_place place) {
  Race race{place};
  double x[kBlock], gap[kBlock];
  fd_law able = *law;  // without the tokens whose weight is 0
  able.cut = std::max({law->cut, -746 * warmth(*law), kLowest});
  int32_t winner = 0;
  for (int b = 0; b < blocks(able); ++b) {
    if (barren(able, b) || run(kRace, able, b, gap, &race) == 0) continue;
    load(able, b, x);
    for (int j = 0; j < kBlock; ++j) {
      if (gap[j] > race.most[j]) continue;
      const double rings = -log_of(1 - gap[j]) / exp_of((x[j] - able.peak) * (1 / warmth(able)));
      if (rings < race.best) race.best = rings, winner = b * kBlock + j;  // of two at once the lower
    }
  }
  return winner;
}

void fd_law_race_as(const fd_law* law, const int32_t* ids, fd_place place, int32_t* first, double* lead) {
  const double inverse = 1 / warmth(*law), cut = std::max({law->cut, -746 * warmth(*law), kLowest});
  double x[kBlock], gap[2], best[2] = {}, speeds = 0;
  first[0] = first[1] = -1;
  for (int b = 0; b < blocks(*law); ++b) {
    load(*law, b, x);
    for (int j = 0; j < kBlock; ++j) {
      if (x[j] - law->peak < cut) continue;
      const int32_t id = ids[b * kBlock + j];
      gaps_of<1>(place, id / 2, gap);
      const double speed = exp_of((x[j] - law->peak) * inverse) / -log_of(1 - gap[id % 2]);
      speeds += speed;
      if (speed > best[0])
        best[1] = best[0], first[1] = first[0], best[0] = speed, first[0] = id;
      else if (speed > best[1])
        best[1] = speed, first[1] = id;
    }
  }
  for (int i = 0; i < 2; ++i) lead[i] = best[i] / speeds;
}

void fd_gaps(fd_place place, int32_t block, double* gaps) { gaps_of<kBlock / 2>(place, block * (kBlock / 2), gaps); }
