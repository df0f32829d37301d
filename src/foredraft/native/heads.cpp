// The chain of trained heads: catches up with the verified rows in one pass of the block, then a pass a guess.
#include "heads.h"

#include <algorithm>
#include <cmath>

#include "guard.h"

using namespace foredraft;

struct fd_heads {
  fd_heads(fd_model& above, fd_model& one, const fd_heads_spec& spec);

  fd_model &target, &block;
  const size_t hidden, taps, width;  // width: of the block's vocabulary
  const bool feeds_normed;
  const float eps;
  std::vector<float> fuse_norms, embedding_norm, hidden_norm;
  std::vector<int32_t> vocabulary;
  struct Product {
    size_t inputs = 0, depth = 0, blocks = 0;
    Buffer weights, in, out;  // in: [64, depth] of the weights' type; out: [64, blocks * kLanes]
  } fuse, enter;
  std::vector<std::vector<float>> lines;  // [threads] of [2 * hidden]
  std::vector<float> rows, scores;
  std::vector<int32_t> parents;
};

namespace {

using Product = fd_heads::Product;

void pack_product(const fd_model& model, const uint16_t* from, size_t outputs, size_t inputs, Product& to) {
  to.inputs = inputs, to.depth = round_up(inputs, kDepth), to.blocks = round_up(outputs, kLanes) / kLanes;
  to.weights.reserve(to.blocks * kLanes * to.depth * model.element());
  to.in.reserve(kMaxRows * to.depth * model.element());
  to.out.reserve(kMaxRows * to.blocks * kLanes * sizeof(float));
  with_element(model.spec, [&](auto element) {
    using T = decltype(element);
    for (size_t r = 0; r < outputs; ++r)
      for (size_t k = 0; k < inputs; ++k) {
        const uint32_t wide = uint32_t(from[r * inputs + k]) << 16;
        T* place = to.weights.as<T>() + r / kLanes * kLanes * to.depth + at<T>(k, r % kLanes);
        if constexpr (sizeof(T) == 2)
          *place = from[r * inputs + k];
        else
          std::memcpy(place, &wide, sizeof wide);
      }
  });
}

template <class T>
class Entry {
 public:
  explicit Entry(fd_heads& heads)
      : heads_(heads), kernels_(*heads.target.kernels), team_(heads.target.team), hidden_(heads.hidden) {}

  // Turns up to 64 rows, from the chain's row `first` on, into what enters the block.
  void run(const fd_chain& chain, size_t first, size_t rows, float* out) {
    const bool fused = heads_.fuse.depth && !chain.goes_on;
    const float* f = fused ? heads_.fuse.out.as<float>() : chain.states[0] + first * hidden_;
    const size_t stride = fused ? heads_.fuse.blocks * kLanes : hidden_;
    team_.run([&](int thread) {
      if (fused) {
        for (size_t r = thread; r < rows; r += team_.size())
          for (size_t tap = 0; tap < heads_.taps; ++tap)
            put(chain.states[tap] + (first + r) * hidden_, &heads_.fuse_norms[tap * hidden_], heads_.fuse, r,
                tap * hidden_, thread);
        team_.barrier();
        multiply(heads_.fuse, rows, thread);
        team_.barrier();
      }
      for (size_t r = thread; r < rows; r += team_.size()) {
        float* embedding = heads_.lines[thread].data() + hidden_;
        embed(heads_.target, chain.tokens[first + r], embedding);
        put(embedding, heads_.embedding_norm.data(), heads_.enter, r, 0, thread);
        put(f + r * stride, heads_.hidden_norm.data(), heads_.enter, r, hidden_, thread);
      }
      team_.barrier();
      multiply(heads_.enter, rows, thread);
    });
    for (size_t r = 0; r < rows; ++r)
      std::memcpy(out + r * hidden_, heads_.enter.out.as<float>() + r * heads_.enter.blocks * kLanes,
                  hidden_ * sizeof(float));
  }

 private:
  // Writes a normed row at input `from` of a product's row r.
  void put(const float* row, const float* weight, Product& to, size_t r, size_t from, int thread) {
    float* line = heads_.lines[thread].data();
    kernels_.rms_norm(row, weight, hidden_, heads_.eps, line);
    T* place = to.in.as<T>() + r * to.depth + from;
    if constexpr (sizeof(T) == 2)
      kernels_.narrow(line, hidden_, place);
    else
      std::memcpy(place, line, hidden_ * sizeof(float));
  }

  void multiply(Product& p, size_t rows, int thread) {
    const size_t grain = p.blocks / (8 * team_.size()) + 1, stride = p.blocks * kLanes;
    for (size_t begin, end; team_.claim(thread, p.blocks, grain, &begin, &end);) {
      const T *w = p.weights.as<T>() + begin * kLanes * p.depth, *x = p.in.as<T>();
      float* y = p.out.as<float>() + begin * kLanes;
      if constexpr (sizeof(T) == 2)
        kernels_.matmul_bf16(w, end - begin, p.depth, x, p.depth, int(rows), y, stride, 0);
      else
        kernels_.matmul_f32(w, end - begin, p.depth, x, p.depth, int(rows), y, stride, 0);
    }
  }

  fd_heads& heads_;
  const Kernels& kernels_;
  Team& team_;
  const size_t hidden_;
};

// Runs the chain's rows through the block; leaves the state and the logits after the last one.
void pass(fd_heads& heads, const fd_chain& chain) {
  const size_t count = chain.rows;
  heads.rows.resize(std::max(heads.rows.size(), count * heads.hidden));
  for (size_t first = 0; first < count; first += kMaxRows)
    with_element(heads.target.spec, [&](auto element) {
      Entry<decltype(element)>(heads).run(chain, first, std::min(count - first, size_t(kMaxRows)),
                                          &heads.rows[first * heads.hidden]);
    });
  for (int32_t r = int32_t(heads.parents.size()); r < chain.rows; ++r) heads.parents.push_back(r - 1);
  const int32_t steps[] = {0, 1}, tap = 0, want = chain.rows - 1;
  fd_request request = {};
  request.sequences = request.taps = request.wanted = 1, request.steps = 2;
  request.slots = &chain.slot, request.starts = &chain.start, request.counts = &chain.rows;
  request.tokens = chain.tokens, request.parents = heads.parents.data(), request.hidden = heads.rows.data();
  request.step = steps, request.tap = &tap, request.want = &want;
  request.logits = chain.logits, request.tapped = chain.state;
  forward(heads.block, request);
  if (heads.feeds_normed) {
    float* line = heads.lines[0].data();
    heads.block.kernels->rms_norm(chain.state, heads.block.weights<float>(FD_NORM), heads.hidden,
                                  heads.block.spec.eps, line);
    std::memcpy(chain.state, line, heads.hidden * sizeof(float));
  }
}

// Guesses the token after the last row, and the next likeliest, with the chance of each; false where the logits are no
// numbers.
bool choose(fd_heads& heads, fd_chain& chain, int32_t i, double* chance) {
  chain.second[i] = -1, chance[1] = 0;
  if (chain.laws) {
    fd_law& law = chain.laws[i];
    float* row = const_cast<float*>(static_cast<const float*>(law.row));
    if (chain.uniforms) {
      std::fill_n(row, law.size, -HUGE_VALF);
      for (size_t j = 0; j < heads.width; ++j) row[heads.vocabulary[j]] = chain.logits[j];
    } else {
      std::copy_n(chain.logits, heads.width, row);
    }
    const int fault = fd_law_make(&law);
    if (fault < 0) throw std::bad_alloc();
    if (fault) return false;
    if (chain.uniforms) {
      fd_law_total(&law);
      chain.guess[i] = fd_law_draw(&law, chain.uniforms[i]);
      *chance = fd_law_at(&law, chain.guess[i]);
    } else {
      const fd_place place = {chain.place.seed, chain.place.position + uint32_t(i), chain.place.choice};
      int32_t first[2];
      fd_law_race_as(&law, heads.vocabulary.data(), place, first, chance);
      chain.guess[i] = first[0], chain.second[i] = first[1];
    }
    return true;
  }
  const Kernels& kernels = *heads.block.kernels;
  const float *logits = chain.logits, *end = logits + heads.width, most = kernels.maximum(logits, heads.width);
  heads.scores.assign(logits, end);
  float* scores = heads.scores.data();
  const float sum = kernels.softmax_exp(scores, heads.width, most);
  if (!std::isfinite(most) || !(sum >= 1)) return false;  // NaN included
  const size_t best = std::find(logits, end, most) - logits;
  chain.guess[i] = heads.vocabulary[best];
  scores[best] = 0;
  const float next = kernels.maximum(scores, heads.width);
  chance[0] = 1.0 / sum, chance[1] = next / sum;
  if (next > 0) chain.second[i] = heads.vocabulary[std::find(scores, scores + heads.width, next) - scores];
  return true;
}

void check(const fd_heads& heads, const fd_chain& chain) {
  bool fine = chain.rows >= 1 && chain.rows <= 1 << 24 && chain.length >= 0 && (!chain.goes_on || chain.rows == 1);
  for (int32_t r = 0; fine && r < chain.rows; ++r)
    fine = chain.tokens[r] >= 0 && chain.tokens[r] < heads.target.spec.vocabulary;
  for (int32_t i = 0; fine && chain.laws && i < chain.length; ++i)
    fine = chain.laws[i].size == (chain.uniforms ? heads.target.spec.vocabulary : int32_t(heads.width)) &&
           !chain.laws[i].wide;
  if (!fine) throw Fault{"a chain of guesses was asked for that makes no sense"};
}

void run(fd_heads& heads, fd_chain& chain) {
  check(heads, chain);
  struct Awake {  // a chain is many short calls
    std::atomic<bool>& flag;
    explicit Awake(std::atomic<bool>& of) : flag(of) { flag = true; }
    ~Awake() { flag = false; }
  } awake(heads.target.team.awake);
  chain.guesses = chain.broken = 0;
  pass(heads, chain);
  fd_chain step = chain;  // one row, from the state of the row before
  const float* state = chain.state;
  step.rows = step.goes_on = 1, step.states = &state;
  double path = 1;
  for (int32_t i = 0; i < chain.length && path >= chain.least[i]; ++i) {
    if (i) {
      step.tokens = &chain.guess[i - 1], step.start = chain.start + chain.rows + i - 1;
      pass(heads, step);
    }
    double chance[2] = {};
    if (!choose(heads, chain, i, chance)) {
      chain.broken = 1;
      return;
    }
    chain.beside[i] = path * chance[1];
    chain.path[i] = path *= chance[0];
    chain.guesses = i + 1;
  }
}

}  // namespace

fd_heads::fd_heads(fd_model& above, fd_model& one, const fd_heads_spec& spec)
    : target(above),
      block(one),
      hidden(above.spec.hidden),
      taps(spec.taps),
      width(one.spec.vocabulary),
      feeds_normed(spec.feeds_normed),
      eps(spec.eps),
      embedding_norm(spec.embedding_norm, spec.embedding_norm + hidden),
      hidden_norm(spec.hidden_norm, spec.hidden_norm + hidden),
      vocabulary(spec.vocabulary, spec.vocabulary + width),
      lines(above.team.size(), std::vector<float>(2 * hidden)) {
  if (spec.fuse) {
    fuse_norms.assign(spec.fuse_norms, spec.fuse_norms + taps * hidden);
    pack_product(above, spec.fuse, hidden, taps * hidden, fuse);
  }
  pack_product(above, spec.enter, hidden, 2 * hidden, enter);
}

int fd_open_beside(const fd_spec* spec, const void* packed, uint64_t bytes, const fd_model* other, fd_model** model) {
  return in_turn(other, [&] {
    if (bytes != Layout(*spec).bytes() || reinterpret_cast<uintptr_t>(packed) % 64)
      throw Fault{"the packed weights are not those of this model"};
    *model = new fd_model(*spec, packed, other->tier, other->shared_team);
  });
}

int fd_heads_open(fd_model* target, fd_model* block, const fd_heads_spec* spec, fd_heads** heads) {
  return in_turn(target, [&] {
    const fd_spec &ours = target->spec, &theirs = block->spec;
    bool fine = target->shared_team == block->shared_team && ours.f32 == theirs.f32 && ours.hidden == theirs.hidden &&
                theirs.layers == 1 && spec->taps >= 1 && spec->taps <= ours.layers && (spec->fuse || spec->taps == 1);
    for (int32_t i = 0, last = -1; fine && i < theirs.vocabulary; last = spec->vocabulary[i++])
      fine = spec->vocabulary[i] > last && spec->vocabulary[i] < ours.vocabulary;
    if (!fine) throw Fault{"the heads are not those of this model"};
    *heads = new fd_heads(*target, *block, *spec);
  });
}

void fd_heads_close(fd_heads* heads) { delete heads; }

int fd_heads_run(fd_heads* heads, fd_chain* chain) {
  return in_turn(&heads->target, [&] { run(*heads, *chain); });
}
