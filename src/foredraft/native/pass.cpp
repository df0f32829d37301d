#include "pass.h"

#include <algorithm>
#include <cmath>

namespace foredraft {

template <class T>
Pass<T>::Pass(fd_model& model, const fd_request& request)
    : model_(model),
      spec_(model.spec),
      request_(request),
      kernels_(*model.kernels),
      plan_(model, request),
      hidden_(model.spec.hidden),
      q_width_(size_t(spec_.heads) * spec_.head_dim),
      kv_width_(size_t(spec_.kv_heads) * spec_.head_dim),
      qkv_stride_(round_up(q_width_ + 2 * kv_width_, kLanes)),
      o_depth_(round_up(q_width_, kDepth)),
      y_stride_(round_up(hidden_, kLanes)),
      act_stride_(round_up(spec_.mlp, kDepth)),
      group_(model.group()),
      key_depth_(model.key_depth()),
      value_width_(model.value_width()),
      half_(model.rope_turns.size()),
      split_(spec_.kinds && spec_.head_dim % kCell) {
  reserve();
  for (int32_t s = 0; s < request.sequences; ++s) {
    size_t& held = model.slots[request.slots[s]].held;
    held = std::max(held, size_t(request.starts[s]) + request.counts[s]);
  }
}

namespace {

// Hands out pieces of one allocation, each on its own cache lines; with a null base it only counts.
struct Carver {
  char* base;
  size_t used = 0;
  template <class E>
  E* take(size_t count) {
    E* piece = base ? reinterpret_cast<E*>(base + used) : nullptr;
    used += round_up(count * sizeof(E), 64);
    return piece;
  }
};

}  // namespace

template <class T>
size_t Pass<T>::carve(char* base, Own<T>* own) const {
  Carver from{base};
  const size_t rows = kMaxRows;
  own->x = from.take<float>(rows * hidden_);
  const size_t widest = std::max(hidden_, q_width_), cells = round_up(widest, kRowPad) / kCell;
  own->normed = {nullptr, round_up(widest, kDepth), nullptr, spec_.kinds ? row_bytes(cells) : 0};
  own->normed.plain = from.take<T>(rows * own->normed.ld);
  own->normed.codes = from.take<char>(rows * own->normed.stride);
  own->gated = from.take<float>(rows * 2 * kGated * kLanes);
  own->line = from.take<float>(round_up(hidden_, kLanes));
  own->logical = from.take<float>(kChunk);
  own->weights = from.take<T>(rows * kChunk);
  own->out = from.take<float>(rows * value_width_);
  for (State* state : {&own->span, &own->unit})
    *state = {from.take<float>(rows), from.take<float>(rows), from.take<float>(rows * value_width_)};
  own->values = from.take<T>(kChunk * value_width_);
  own->narrow = from.take<T>(key_depth_);
  own->scores = from.take<float>(rows * plan_.reach);  // last: what changes its size moves nothing else
  own->path = from.take<int32_t>(plan_.depths);
  return from.used;
}

template <class T>
size_t Pass<T>::carve_shared(char* base) {
  Carver from{base};
  const size_t rows = kMaxRows;
  qkv_ = from.take<float>(rows * qkv_stride_);
  y_ = from.take<float>(rows * y_stride_);
  cos_ = from.take<float>(rows * half_);
  sin_ = from.take<float>(rows * half_);
  q_ = from.take<T>(rows * spec_.heads * key_depth_);
  raw_ = from.take<float>(split_ ? rows * q_width_ : 0);
  attended_ = {from.take<T>(rows * o_depth_), o_depth_, nullptr, 0};
  attended_.stride = spec_.kinds ? row_bytes(round_up(q_width_, kRowPad) / kCell) : 0;
  attended_.codes = from.take<char>(rows * attended_.stride);
  act_ = {from.take<T>(rows * act_stride_), act_stride_, nullptr, 0};
  act_.stride = spec_.kinds ? row_bytes(round_up(spec_.mlp, kRowPad) / kCell) : 0;
  act_.codes = from.take<char>(rows * act_.stride);
  partial_ = from.take<float>(plan_.partials);
  return from.used;
}

template <class T>
void Pass<T>::reserve() {
  Own<T> own;
  model_.shared.reserve(carve_shared(nullptr));
  carve_shared(model_.shared.as<char>());
  for (Buffer& buffer : model_.own) buffer.reserve(carve(nullptr, &own));
}

template <class T>
void Pass<T>::run() {
  if (!plan_.blocks.empty()) model_.team.run([this](int thread) { work(thread); });
}

template <class T>
void Pass<T>::work(int thread) {
  Own<T> own;
  carve(model_.own[thread].as<char>(), &own);
  own.thread = thread;
  Team& team = model_.team;
  for (Block& block : plan_.blocks) {
    input(block, own);
    int32_t before = -1;
    int32_t i = 0;
    for (; i < request_.steps; ++i) {
      const int32_t layer = request_.step[i] / 2;
      if (thread == 0) tap(block, before, layer, own);
      before = layer;
      if (request_.step[i] % 2) {
        normalise(own.x, block.rows, FD_BEFORE_GATED, FD_GATE, layer, own);
        gate(block, layer, own);
        fetch(FD_DOWN, layer, own);
        team.barrier();
        project(FD_DOWN, layer, act_, block.rows, y_, own);
        fetch_after(i, own);
        team.barrier();
        add(block.rows, FD_DOWN_BIAS, FD_AFTER_GATED, layer, own);
        continue;
      }
      normalise(own.x, block.rows, FD_BEFORE_ATTENTION, FD_QKV, layer, own);
      project(FD_QKV, layer, own.normed, block.rows, qkv_, own);
      team.barrier();
      store(block, layer, own);
      team.barrier();
      if (i == plan_.last_attention && !block.wanted) break;  // nobody asks for more than keys and values
      attend(block, layer, own);
      fetch(FD_O, layer, own);
      team.barrier();
      for (size_t r = 0; split_ && r < block.rows; ++r)
        enter(model_.tier, model_.layout.find(FD_O, layer), raw_ + r * q_width_, q_width_, r, 0, own.normed);
      project(FD_O, layer, split_ ? own.normed : attended_, block.rows, y_, own);
      fetch_after(i, own);
      team.barrier();
      add(block.rows, FD_O_BIAS, FD_AFTER_ATTENTION, layer, own);
    }
    if (!block.wanted) continue;
    if (thread == 0) tap(block, before, spec_.layers, own);
    if (request_.logits) {
      logits(block, own);
      team.barrier();
    }
  }
}

// Reads the rows' embeddings, and turns the positions into angles.
template <class T>
void Pass<T>::input(const Block& block, Own<T>& own) {
  if (request_.hidden)
    std::memcpy(own.x, request_.hidden + block.row * hidden_, block.rows * hidden_ * sizeof(float));
  for (size_t r = 0; r < block.rows && !request_.hidden; ++r)
    embed(model_, request_.tokens[block.row + r], own.x + r * hidden_);
  for (size_t r = own.thread; r < block.rows; r += model_.team.size())
    for (size_t rope = 0, j = 0; rope < size_t(spec_.ropes); ++rope)
      for (int32_t i = 0; i < spec_.rope_dims[rope] / 2; ++i, ++j) {
        const float angle = float(plan_.positions[block.row + r]) * spec_.rope_turns[j];
        cos_[r * half_ + j] = spec_.rope_scales[rope] * std::cos(angle);
        sin_[r * half_ + j] = spec_.rope_scales[rope] * std::sin(angle);
      }
}

template <class T>
void Pass<T>::normalise(const float* x, size_t rows, int32_t norm, int32_t part, int32_t layer, Own<T>& own) {
  const float* weight = model_.weights<float>(norm, layer);
  for (size_t r = 0; r < rows; ++r) {
    const float* row = x + r * hidden_;
    if (weight) {
      kernels_.rms_norm(row, weight, hidden_, spec_.eps, own.line);
      row = own.line;
    }
    enter(model_.tier, model_.layout.find(part, layer), row, hidden_, r, 0, own.normed);
  }
}

template <class T>
void Pass<T>::project(int32_t part, int32_t layer, const Rows<T>& x, size_t rows, float* y, const Own<T>& own) {
  const Part& found = model_.layout.find(part, layer);
  const size_t blocks = round_up(found.outputs, kLanes) / kLanes, stride = blocks * kLanes;
  const size_t grain = std::min<size_t>(32, round_up(blocks / (8 * model_.team.size()) + 1, 4));
  for (size_t begin, end; model_.team.claim(own.thread, blocks, grain, &begin, &end);)
    multiply(model_.tier, found, model_.packed, begin, end, x, rows, y + begin * kLanes, stride);
}

// Fetches the first of the weights that the next product begins with, for the memory to have work during a barrier.
template <class T>
void Pass<T>::fetch(int32_t part, int32_t layer, const Own<T>& own) const {
  const Part& found = model_.layout.find(part, layer);
  const size_t first = model_.team.share(own.thread, round_up(found.outputs, kLanes) / kLanes);
  const Span& span = found.at(first);
  const char* w = model_.packed + span.offset + (first - span.first) * span.stride;
  for (size_t b = 0; b < kFetchBlocks; ++b)
    for (size_t at = 0; at < kFetchBytes; at += 64) __builtin_prefetch(w + b * span.stride + at);
}

template <class T>
void Pass<T>::fetch_after(int32_t step, const Own<T>& own) const {
  if (step + 1 == request_.steps) return fetch(FD_HEAD, 0, own);
  const int32_t next = request_.step[step + 1];
  fetch(next % 2 ? FD_GATE : FD_QKV, next / 2, own);
}

// Adds a sub-layer's output to the residual, on every thread.
template <class T>
void Pass<T>::add(size_t rows, int32_t bias, int32_t norm, int32_t layer, Own<T>& own) {
  const float *biases = model_.weights<float>(bias, layer), *weight = model_.weights<float>(norm, layer);
  for (size_t r = 0; r < rows; ++r) {
    const float* h = y_ + r * y_stride_;
    float* line = own.line;
    if (biases) {
      for (size_t i = 0; i < hidden_; ++i) line[i] = h[i] + biases[i];
      h = line;
    }
    if (weight) {
      kernels_.rms_norm(h, weight, hidden_, spec_.eps, line);
      h = line;
    }
    if (spec_.residual_scale != 1.0f) {
      for (size_t i = 0; i < hidden_; ++i) line[i] = h[i] * spec_.residual_scale;
      h = line;
    }
    kernels_.add(own.x + r * hidden_, h, hidden_);
  }
}

template <class T>
void Pass<T>::gate(const Block& block, int32_t layer, Own<T>& own) {
  const Part &gated = model_.layout.find(FD_GATE, layer), &up = model_.layout.find(FD_UP, layer);
  const Part& down = model_.layout.find(FD_DOWN, layer);
  const float *bias = model_.weights<float>(FD_GATE_BIAS, layer), *other = model_.weights<float>(FD_UP_BIAS, layer);
  // Two blocks are a cell of what comes next, which one thread has to have whole.
  const size_t blocks = gated.spans[0].blocks, pairs = (blocks + 1) / 2;
  const size_t grain = std::min(kGated / 2, pairs / (8 * model_.team.size()) + 1);
  for (size_t begin, end; model_.team.claim(own.thread, pairs, grain, &begin, &end);) {
    const size_t first = 2 * begin, last = std::min(2 * end, blocks), n = (last - first) * kLanes;
    multiply(model_.tier, gated, model_.packed, first, last, own.normed, block.rows, own.gated, 2 * n);
    multiply(model_.tier, up, model_.packed, first, last, own.normed, block.rows, own.gated + n, 2 * n);
    for (size_t r = 0; r < block.rows; ++r) {
      float* row = own.gated + r * 2 * n;
      if (bias) kernels_.add(row, bias + first * kLanes, n), kernels_.add(row + n, other + first * kLanes, n);
      kernels_.gate(row, row + n, n, spec_.activation, row);
      enter(model_.tier, down, row, n, r, first * kLanes, act_);
    }
  }
}

template <class T>
void Pass<T>::logits(const Block& block, Own<T>& own) {
  const float* weight = model_.weights<float>(FD_NORM);
  for (size_t i = 0; i < block.wanted; ++i) {
    const size_t r = request_.want[block.want + i] - block.row;
    kernels_.rms_norm(own.x + r * hidden_, weight, hidden_, spec_.eps, own.line);
    enter(model_.tier, model_.layout.find(FD_HEAD, 0), own.line, hidden_, i, 0, own.normed);
  }
  const Subset* subset = request_.subset ? &model_.subsets[request_.subset - 1] : nullptr;
  const Part& part = subset ? subset->part : model_.layout.find(FD_HEAD, 0);
  const char* base = subset ? subset->weights.template as<char>() : model_.packed;
  const size_t width = subset ? subset->count : spec_.vocabulary, blocks = round_up(width, kLanes) / kLanes;
  const size_t whole = width / kLanes;
  const size_t grain = std::min<size_t>(16, blocks / (8 * model_.team.size()) + 1);
  for (size_t begin, end; model_.team.claim(own.thread, blocks, grain, &begin, &end);) {
    float* out = request_.logits + block.want * width;
    if (end > whole) {  // the last block is not full: aside, then copied
      multiply(model_.tier, part, base, whole, whole + 1, own.normed, block.wanted, own.gated, kLanes);
      for (size_t i = 0; i < block.wanted; ++i)
        std::memcpy(out + i * width + whole * kLanes, own.gated + i * kLanes, width % kLanes * sizeof(float));
    }
    const size_t full = std::min(end, whole) - begin, n = std::min(end * kLanes, width) - begin * kLanes;
    if (full) multiply(model_.tier, part, base, begin, begin + full, own.normed, block.wanted, out + begin * kLanes, width);
    for (size_t i = 0; i < block.wanted; ++i) {
      float* row = out + i * width + begin * kLanes;
      if (spec_.logits_divisor != 1.0f)
        for (size_t c = 0; c < n; ++c) row[c] /= spec_.logits_divisor;
      if (spec_.logits_cap) kernels_.soft_cap(row, n, spec_.logits_cap);
    }
  }
}

// Gives the residuals of wanted rows for each tapped layer from `from` up to `to`, not included.
template <class T>
void Pass<T>::tap(const Block& block, int32_t from, int32_t to, const Own<T>& own) {
  for (int32_t t = 0; t < request_.taps; ++t)
    if (request_.tap[t] >= from && request_.tap[t] < to)
      for (size_t i = block.want; i < block.want + block.wanted; ++i)
        std::memcpy(request_.tapped + (size_t(t) * request_.wanted + i) * hidden_,
                    own.x + (request_.want[i] - block.row) * hidden_, hidden_ * sizeof(float));
}

void forward(fd_model& model, const fd_request& request) {
  with_element(model.spec, [&](auto element) { Pass<decltype(element)>(model, request).run(); });
}

}  // namespace foredraft
