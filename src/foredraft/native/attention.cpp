// Keys and values into the slots, and attention over them with the products that serve the weights.
//
// Every row sees its keys in path order: chunk c holds the keys c * kChunk and up of its own path, wherever they lie.
// Chunks are folded together in order, in spans of fixed length, so a row's bits hang on its path alone. Rows in place
// share products. For the others scores are taken where the keys lie, which changes no bit of a score, and put in path
// order; values are copied into path order, because the order of their sum matters.
#include <algorithm>
#include <cmath>

#include "pass.h"

namespace foredraft {

// Queries to q_, keys and values to the slots: biases, norms, rotation.
template <class T>
void Pass<T>::store(const Block& block, int32_t layer, Own<T>& own) {
  const bool full = spec_.qk_norm == 2;
  const size_t heads = full ? 1 : spec_.kv_heads, each = full ? spec_.kv_heads : 1;
  const size_t pieces = (block.rows + kStoreRows - 1) / kStoreRows;
  for (size_t piece, end; model_.team.claim(own.thread, heads * pieces, 1, &piece, &end);) {
    const size_t head = piece / pieces * each, from = piece % pieces * kStoreRows;
    for (const Run& run : block.runs)
      for (size_t r = std::max(from, run.row), to = std::min(from + kStoreRows, run.row + run.count); r < to; ++r)
        store_row(block, run, r, layer, head, each, own);
  }
}

template <class T>
bool finite(const T* values, size_t n) {
  return std::all_of(values, values + n, [](T value) {
    if constexpr (sizeof(T) == 2) return (value & 0x7f80) != 0x7f80;
    return std::isfinite(float(value));
  });
}

template <class T>
void Pass<T>::store_row(const Block& block, const Run& run, size_t r, int32_t layer, size_t head, size_t heads,
                        Own<T>& own) {
  const size_t dim = spec_.head_dim, rows = block.rows;
  float* q = qkv_ + r * qkv_stride_;
  float *k = q + q_width_, *v = k + kv_width_;
  const float* bias = model_.weights<float>(FD_QKV_BIAS, layer);
  const float *q_norm = model_.weights<float>(FD_Q_NORM, layer), *k_norm = model_.weights<float>(FD_K_NORM, layer);
  const size_t q0 = head * group_ * dim, q_n = heads * group_ * dim, kv0 = head * dim, kv_n = heads * dim;
  if (bias) {
    kernels_.add(q + q0, bias + q0, q_n);
    kernels_.add(k + kv0, bias + q_width_ + kv0, kv_n);
    kernels_.add(v + kv0, bias + q_width_ + kv_width_ + kv0, kv_n);
  }
  if (spec_.qk_norm == 2) {
    kernels_.rms_norm(q, q_norm, q_width_, spec_.eps, q);
    kernels_.rms_norm(k, k_norm, kv_width_, spec_.eps, k);
  }
  const size_t place = run.start + run.index + (r - run.row), chunk = place / kChunk, key = place % kChunk;
  for (size_t h = head; h < head + heads; ++h) {
    for (size_t g = 0; g < group_; ++g) {
      float* one = q + (h * group_ + g) * dim;
      if (spec_.qk_norm == 1) kernels_.rms_norm(one, q_norm, dim, spec_.eps, one);
      turn(one, r, spec_.rope_of[layer]);
      for (size_t d = 0; d < dim; ++d) one[d] *= spec_.attention_scale;
      narrow(one, dim, q_ + ((h * rows + r) * group_ + g) * key_depth_);
    }
    float* one = k + h * dim;
    if (spec_.qk_norm == 1) kernels_.rms_norm(one, k_norm, dim, spec_.eps, one);
    turn(one, r, spec_.rope_of[layer]);
    narrow(one, dim, own.narrow);
    T* keys = model_.keys<T>(*run.slot, chunk, layer, h) + key / kLanes * kLanes * key_depth_;
    for (size_t d = 0; d < dim; ++d) keys[at<T>(d, key % kLanes)] = own.narrow[d];
    narrow(v + h * dim, dim, own.narrow);
    // Rows that do not see this key still multiply its value, by 0. One that is no number is marked in the key instead,
    // so that it spoils those who see it and nobody who comes after it to this slot.
    if (!finite(own.narrow, dim)) {
      std::memset(static_cast<void*>(own.narrow), 0, dim * sizeof(T));
      keys[at<T>(0, key % kLanes)] = sizeof(T) == 2 ? T(0x7fc0) : T(NAN);
    }
    T* values = model_.values<T>(*run.slot, chunk, layer, h);
    for (size_t d = 0; d < dim; ++d) values[d / kLanes * kLanes * kChunk + at<T>(key, d % kLanes)] = own.narrow[d];
  }
}

template <class T>
void Pass<T>::turn(float* head, size_t r, int32_t rope) const {
  if (rope < 0) return;
  size_t first = 0;
  for (int32_t i = 0; i < rope; ++i) first += spec_.rope_dims[i] / 2;
  const size_t half = spec_.rope_dims[rope] / 2;
  const float *cos = cos_ + r * half_ + first, *sin = sin_ + r * half_ + first;
  for (size_t i = 0; i < half; ++i) {
    const float a = head[i], b = head[i + half];
    head[i] = a * cos[i] - b * sin[i];
    head[i + half] = b * cos[i] + a * sin[i];
  }
}

template <class T>
void Pass<T>::attend(Block& block, int32_t layer, Own<T>& own) {
  for (size_t t, end; model_.team.claim(own.thread, block.tasks.size(), 1, &t, &end);) {
    const Task& task = block.tasks[t];
    const Unit& unit = block.units[task.unit];
    const size_t spans = unit.spans(), n = unit.flats;
    std::fill_n(own.unit.sum, n, 0.0f);
    auto join = [&](const State& part) {
      for (size_t f = 0; f < n; ++f) fold(own.unit, f, part.max[f], part.sum[f], part.out + f * value_width_);
    };
    if (unit.tasks == 1) {
      for (size_t s = 0; s < spans; ++s) {
        span(block, unit, s, layer, own);
        join(own.span);
      }
    } else {
      span(block, unit, task.span, layer, own);
      const State kept = partial(unit, task.span);
      std::memcpy(kept.max, own.span.max, n * sizeof(float));
      std::memcpy(kept.sum, own.span.sum, n * sizeof(float));
      std::memcpy(kept.out, own.span.out, n * value_width_ * sizeof(float));
      if (block.left[task.unit].fetch_sub(1, std::memory_order_acq_rel) != 1) continue;
      block.left[task.unit].store(int(unit.tasks), std::memory_order_relaxed);
      for (size_t s = 0; s < spans; ++s) join(partial(unit, s));
    }
    finish(block, unit, layer, own.unit);
  }
}

template <class T>
State Pass<T>::partial(const Unit& unit, size_t s) const {
  float* at = partial_ + unit.partial + s * (2 + value_width_) * kMaxRows;
  return {at, at + kMaxRows, at + 2 * kMaxRows};
}

template <class T>
void Pass<T>::span(const Block& block, const Unit& unit, size_t s, int32_t layer, Own<T>& own) {
  const Run& run = block.runs[unit.run];
  std::fill_n(own.span.sum, unit.flats, 0.0f);
  size_t from = s * kSpan;
  const size_t to = std::min(from + kSpan, unit.chunks);
  if (const size_t window = spec_.windows[layer]) {  // chunks that no row sees
    size_t low = size_t(-1);
    for (size_t r = unit.flat / group_; r <= (unit.flat + unit.flats - 1) / group_; ++r)
      low = std::min(low, plan_.positions[block.row + run.row + r]);
    from = std::max(from, (low + 1 > window ? low + 1 - window : 0) / kChunk);
  }
  const size_t shared = run.placed ? to : std::min(to, run.tail());
  for (size_t chunk = from; chunk < shared; ++chunk) placed(block, unit, chunk, layer, own);
  if (std::max(from, shared) < to) gathered(block, unit, std::max(from, shared), to, layer, own);
}

// The keys of a chunk that a row at this position sees.
inline Seen seen(size_t position, size_t window, size_t chunk) {
  auto within = [&](size_t key) { return key > chunk * kChunk ? std::min(key - chunk * kChunk, kChunk) : 0; };
  return {within(window && position + 1 > window ? position + 1 - window : 0), within(position + 1)};
}

template <class T>
void Pass<T>::placed(const Block& block, const Unit& unit, size_t chunk, int32_t layer, Own<T>& own) {
  const Run& run = block.runs[unit.run];
  const size_t* positions = &plan_.positions[block.row + run.row];
  const size_t window = spec_.windows[layer], first = chunk * kChunk, n = unit.flats;
  // A row out of place knows its first `start` keys here, and all of this chunk is among them.
  const size_t last = run.placed ? positions[(unit.flat + n - 1) / group_] : first + kChunk - 1;
  const size_t blocks = (std::min(last + 1 - first, kChunk) + kLanes - 1) / kLanes;
  const T* q = q_ + (unit.head * block.rows * group_ + run.row * group_ + unit.flat) * key_depth_;
  const T *keys = model_.keys<T>(*run.slot, chunk, layer, unit.head), *values = keys + kChunk * key_depth_;
  // The next chunk lies in another page, and is fetched while the processor is busy with this one.
  const T* next = chunk + 1 < unit.chunks ? model_.keys<T>(*run.slot, chunk + 1, layer, unit.head) : keys;
  const ptrdiff_t far = reinterpret_cast<const char*>(next) - reinterpret_cast<const char*>(keys);
  matmul(keys, blocks, key_depth_, q, key_depth_, n, own.scores, kChunk, far);
  float max[kMaxRows], sum[kMaxRows];
  auto keys_of = [&](size_t f) { return seen(positions[(unit.flat + f) / group_], window, chunk); };
  for (size_t f = 0; f < n; ++f) max[f] = highest(own.scores + f * kChunk, keys_of(f));  // no row waits for its own
  for (size_t f = 0; f < n; ++f)
    sum[f] = soften(own.scores + f * kChunk, keys_of(f), max[f], own.weights + f * kChunk);
  matmul(values, value_width_ / kLanes, kChunk, own.weights, kChunk, n, own.out, value_width_, far);
  for (size_t f = 0; f < n; ++f) fold(own.span, f, max[f], sum[f], own.out + f * value_width_);
}

// The same for chunks `from` up to `to`, at or beyond the run's tail, of rows out of place.
template <class T>
void Pass<T>::gathered(const Block& block, const Unit& unit, size_t from, size_t to, int32_t layer, Own<T>& own) {
  const Run& run = block.runs[unit.run];
  const size_t window = spec_.windows[layer], n = unit.flats, tail = run.tail() * kChunk;
  const T* q = q_ + (unit.head * block.rows * group_ + run.row * group_ + unit.flat) * key_depth_;
  for (size_t at = tail; at < run.places(); at += kChunk) {
    const size_t blocks = (std::min(run.places() - at, kChunk) + kLanes - 1) / kLanes;
    matmul(model_.keys<T>(*run.slot, at / kChunk, layer, unit.head), blocks, key_depth_, q, key_depth_, n,
           own.scores + (at - tail), plan_.reach);
  }
  for (size_t f = 0, next; f < n; f = next) {
    const size_t r = (unit.flat + f) / group_, position = plan_.positions[block.row + run.row + r];
    next = std::min((r + 1) * group_ - unit.flat, n);
    int32_t node = int32_t(run.index + r);
    for (size_t depth = position - run.start + 1; depth-- > 0; node = run.parents[node]) own.path[depth] = node;
    for (size_t chunk = from; chunk < std::min(to, position / kChunk + 1); ++chunk) {
      const Seen all = seen(position, window, chunk);
      gather_values(run, chunk, all.end, layer, unit.head, own);
      float max[kMaxRows], sum[kMaxRows];
      for (size_t i = f; i < next; ++i) {
        const float* scores = own.scores + i * plan_.reach;
        for (size_t key = 0; key < all.end; ++key) {
          const size_t logical = chunk * kChunk + key;
          const size_t place = logical < run.start ? logical : run.start + own.path[logical - run.start];
          own.logical[key] = scores[place - tail];
        }
        max[i - f] = highest(own.logical, all);
        sum[i - f] = soften(own.logical, all, max[i - f], own.weights + (i - f) * kChunk);
      }
      matmul(own.values, value_width_ / kLanes, kChunk, own.weights, kChunk, next - f, own.out, value_width_);
      for (size_t i = f; i < next; ++i) fold(own.span, i, max[i - f], sum[i - f], own.out + (i - f) * value_width_);
    }
  }
}

// Copies the values of one chunk of own.path, in its order, to own.values.
template <class T>
void Pass<T>::gather_values(const Run& run, size_t chunk, size_t keys, int32_t layer, size_t head, Own<T>& own) {
  constexpr size_t kStep = sizeof(T) == 2 ? 2 : 1;  // keys beside each other
  const size_t first = chunk * kChunk;
  const size_t common = run.start > first ? std::min(run.start - first, keys) / kStep * kStep : 0;
  for (size_t b = 0; b < value_width_ / kLanes; ++b) {
    T* to = own.values + b * kLanes * kChunk;
    const T* same = model_.values<T>(*run.slot, chunk, layer, head) + b * kLanes * kChunk;
    std::memcpy(to, same, common * kLanes * sizeof(T));
    std::memset(to + common * kLanes, 0, (kChunk - common) * kLanes * sizeof(T));
    for (size_t key = common; key < keys; ++key) {
      const size_t logical = first + key;
      const size_t place = logical < run.start ? logical : run.start + own.path[logical - run.start];
      const T* from = model_.values<T>(*run.slot, place / kChunk, layer, head) + b * kLanes * kChunk;
      for (size_t c = 0; c < kLanes; ++c) to[at<T>(key, c)] = from[at<T>(place % kChunk, c)];
    }
  }
}

// Caps the scores of the keys that a row sees, and returns the highest; 0 where it sees none.
template <class T>
float Pass<T>::highest(float* scores, Seen keys) {
  if (keys.begin >= keys.end) return 0;
  if (spec_.attention_cap) kernels_.soft_cap(scores + keys.begin, keys.end - keys.begin, spec_.attention_cap);
  return kernels_.maximum(scores + keys.begin, keys.end - keys.begin);
}

// Scores to weights of the values, and their sum; keys that a row does not see get 0.
template <class T>
float Pass<T>::soften(float* scores, Seen keys, float max, T* weights) {
  const size_t end = std::max(keys.begin, keys.end);
  const float sum = kernels_.softmax_exp(scores + keys.begin, end - keys.begin, max);
  std::fill(scores, scores + keys.begin, 0.0f);
  std::fill(scores + end, scores + kChunk, 0.0f);
  narrow(scores, kChunk, weights);
  return sum;
}

template <class T>
void Pass<T>::fold(const State& into, size_t i, float max, float sum, const float* out) {
  float* mine = into.out + i * value_width_;
  if (sum == 0) return;  // it saw no key
  if (into.sum[i] == 0) {
    into.max[i] = max;
    into.sum[i] = sum;
    std::memcpy(mine, out, value_width_ * sizeof(float));
    return;
  }
  const bool higher = max > into.max[i];
  const float less = std::exp(higher ? into.max[i] - max : max - into.max[i]);
  const float old = higher ? less : 1.0f, fresh = higher ? 1.0f : less;
  if (higher) into.max[i] = max;
  into.sum[i] = into.sum[i] * old + sum * fresh;
  for (size_t d = 0; d < value_width_; ++d) mine[d] = mine[d] * old + out[d] * fresh;
}

template <class T>
void Pass<T>::finish(const Block& block, const Unit& unit, int32_t layer, const State& state) {
  const Run& run = block.runs[unit.run];
  const size_t dim = spec_.head_dim;
  const Part& part = model_.layout.find(FD_O, layer);
  for (size_t f = 0; f < unit.flats; ++f) {
    const size_t flat = unit.flat + f, row = run.row + flat / group_, head = unit.head * group_ + flat % group_;
    float* out = state.out + f * value_width_;
    for (size_t d = 0; d < dim; ++d) out[d] /= state.sum[f];
    if (split_)
      std::memcpy(raw_ + row * q_width_ + head * dim, out, dim * sizeof(float));
    else
      enter(model_.tier, part, out, dim, row, head * dim, attended_);
  }
}

template void Pass<uint16_t>::store(const Block&, int32_t, Own<uint16_t>&);
template void Pass<float>::store(const Block&, int32_t, Own<float>&);
template void Pass<uint16_t>::attend(Block&, int32_t, Own<uint16_t>&);
template void Pass<float>::attend(Block&, int32_t, Own<float>&);

}  // namespace foredraft
