// The packed form, and what a model keeps between passes.
#include "model.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#if !defined(_WIN32)
#include <unistd.h>
#endif

namespace foredraft {

float widen_half(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float sign = bits >> 15 ? -1.0f : 1.0f;
  if (exponent == 31) return fraction ? NAN : sign * INFINITY;
  return sign * (exponent ? std::ldexp(1024.0f + fraction, exponent - 25) : std::ldexp(float(fraction), -24));
}

namespace {

uint16_t narrow(float value) {  // round to nearest even
  uint32_t u;
  std::memcpy(&u, &value, sizeof u);
  if ((u & 0x7fffffffu) > 0x7f800000u) return uint16_t(u >> 16 | 0x40u);
  return uint16_t((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

float read(const void* source, int32_t type, size_t i) {
  if (type == FD_BF16) {
    const uint32_t u = uint32_t(static_cast<const uint16_t*>(source)[i]) << 16;
    float value;
    std::memcpy(&value, &u, sizeof value);
    return value;
  }
  if (type == FD_F16) return widen_half(static_cast<const uint16_t*>(source)[i]);
  return type == FD_F32 ? static_cast<const float*>(source)[i] : float(static_cast<const double*>(source)[i]);
}

void put(uint16_t* to, const void* source, int32_t type, size_t i) {
  *to = type == FD_BF16 ? static_cast<const uint16_t*>(source)[i] : narrow(read(source, type, i));
}
void put(float* to, const void* source, int32_t type, size_t i) { *to = read(source, type, i); }

template <class T>
void put_rows(char* base, size_t depth, const void* source, int32_t type, size_t rows, size_t cols, size_t first) {
  for (size_t r = 0; r < rows; ++r) {
    T* block = reinterpret_cast<T*>(base) + (first + r) / kLanes * kLanes * depth;
    for (size_t k = 0; k < cols; ++k) put(block + at<T>(k, (first + r) % kLanes), source, type, r * cols + k);
  }
}

}  // namespace

long process_number() {
#if defined(_WIN32)
  return 0;
#else
  return long(getpid());
#endif
}

void check_spec(const fd_spec& s) {
  auto within = [](int32_t n, int32_t most) { return n >= 1 && n <= most; };
  const int32_t wide = 1 << 18;
  bool fine = within(s.vocabulary, 1 << 24) && within(s.hidden, wide) && within(s.layers, 4096) &&
              within(s.heads, 4096) && within(s.kv_heads, s.heads) && s.heads % s.kv_heads == 0 &&
              within(s.head_dim, 1024) && s.head_dim % 2 == 0 && within(s.mlp, wide) && within(s.context, 1 << 28) &&
              s.qk_norm >= 0 && s.qk_norm <= 2 && s.activation >= 0 && s.activation <= 1 && s.ropes >= 0 &&
              s.ropes <= s.layers && int64_t(s.heads) * s.head_dim <= wide && s.windows && s.rope_of &&
              (!s.ropes || (s.rope_dims && s.rope_scales && s.rope_turns)) && s.logits_divisor != 0;
  for (int32_t r = 0; fine && r < s.ropes; ++r)
    fine = within(s.rope_dims[r], s.head_dim) && s.rope_dims[r] % 2 == 0;
  for (int32_t l = 0; fine && l < s.layers; ++l)
    fine = s.rope_of[l] >= -1 && s.rope_of[l] < s.ropes && s.windows[l] >= 0;
  for (int32_t i = 0; fine && s.kinds && i < 2 + 7 * s.layers; ++i)
    fine = !s.f32 && (s.kinds[i] == FD_BF16 || (coded(s.kinds[i]) && s.kinds[i] < FD_TYPES));
  if (!fine) throw Fault{"the description of the model makes no sense to the native pass"};
}

Layout::Layout(const fd_spec& s) {
  check_spec(s);
  parts_.resize(FD_QKV + size_t(s.layers) * (FD_PARTS - FD_QKV));
  const size_t element = s.f32 ? 4 : 2;
  const size_t hidden = s.hidden, q = size_t(s.heads) * s.head_dim, kv = size_t(s.kv_heads) * s.head_dim;
  auto place = [&](Part& part, size_t bytes) {
    part.offset = bytes_;
    part.bytes = bytes;
    bytes_ += round_up(bytes, 64);
  };
  auto kind_of = [&](size_t which) { return s.kinds ? s.kinds[which] : int32_t(FD_BF16); };
  // Of up to three groups of outputs, with a type each; those of one type are one span.
  auto matrix = [&](Part& part, size_t inputs, std::initializer_list<std::pair<size_t, int32_t>> groups) {
    part.inputs = inputs, part.depth = round_up(inputs, kDepth);
    for (const auto& [outputs, kind] : groups) part.add(outputs, kind, element);
    size_t bytes = 0;
    for (int i = 0; i < part.count; bytes += part.spans[i].blocks * part.spans[i].stride, ++i)
      part.spans[i].offset = bytes_ + bytes;
    place(part, bytes);
  };
  auto vector = [&](Part& part, bool there, size_t outputs) {
    part.outputs = outputs;
    if (there) place(part, outputs * sizeof(float));
  };
  if (!s.tied) {  // rows as the file has them
    Part& part = parts_[FD_EMBEDDING];
    part.outputs = s.vocabulary, part.inputs = hidden, part.count = 1;
    place(part, part.outputs * raw_bytes(part.spans[0].kind = kind_of(0), hidden, element));
  }
  for (int32_t l = 0; l < s.layers; ++l) {
    auto part = [&](int32_t kind) -> Part& { return parts_[kept(kind, l)]; };
    const size_t kinds = 2 + 7 * size_t(l);  // q, k, v, o, gate, up, down
    vector(part(FD_BEFORE_ATTENTION), s.norm_before, hidden);
    matrix(part(FD_QKV), hidden, {{q, kind_of(kinds)}, {kv, kind_of(kinds + 1)}, {kv, kind_of(kinds + 2)}});
    vector(part(FD_QKV_BIAS), s.qkv_bias, q + 2 * kv);
    const bool full = s.qk_norm == 2;
    vector(part(FD_Q_NORM), s.qk_norm, full ? q : s.head_dim);
    vector(part(FD_K_NORM), s.qk_norm, full ? kv : s.head_dim);
    matrix(part(FD_O), q, {{hidden, kind_of(kinds + 3)}});
    vector(part(FD_O_BIAS), s.o_bias, hidden);
    vector(part(FD_AFTER_ATTENTION), s.norm_after, hidden);
    vector(part(FD_BEFORE_GATED), s.norm_before, hidden);
    matrix(part(FD_GATE), hidden, {{size_t(s.mlp), kind_of(kinds + 4)}});
    matrix(part(FD_UP), hidden, {{size_t(s.mlp), kind_of(kinds + 5)}});
    vector(part(FD_GATE_BIAS), s.mlp_bias, round_up(s.mlp, kLanes));
    vector(part(FD_UP_BIAS), s.mlp_bias, round_up(s.mlp, kLanes));
    matrix(part(FD_DOWN), s.mlp, {{hidden, kind_of(kinds + 6)}});
    vector(part(FD_DOWN_BIAS), s.mlp_bias, hidden);
    vector(part(FD_AFTER_GATED), s.norm_after, hidden);
  }
  vector(parts_[FD_NORM], true, hidden);
  matrix(parts_[FD_HEAD], hidden, {{size_t(s.vocabulary), kind_of(1)}});
}

void pack(const fd_spec& spec, void* packed, int32_t kind, int32_t layer, const void* source, int32_t type,
          int64_t rows, int64_t cols, int64_t first) {
  if (kind < 0 || kind >= FD_PARTS || layer < 0 || layer >= spec.layers || type < FD_BF16 || type >= FD_TYPES)
    throw Fault{"there is no such part to pack"};
  const Part part = Layout(spec).find(kind, layer);
  const Span span = part.at(size_t(first) / kLanes);
  const size_t outputs = part.depth ? std::min(part.outputs, (span.first + span.blocks) * kLanes) : part.outputs;
  if (!part.bytes || rows < 0 || first < 0 || size_t(rows) > outputs || size_t(first) > outputs - size_t(rows) ||
      cols != int64_t(part.inputs ? part.inputs : 1))
    throw Fault{"a tensor does not fit its place in the packed form"};
  if (type != span.kind && (coded(type) || coded(span.kind)))
    throw Fault{"a tensor is not of the type that the packed form has for it"};
  char* base = static_cast<char*>(packed) + (part.depth ? span.offset : part.offset);
  const size_t from = part.depth ? first - span.first * kLanes : first;
  if (coded(span.kind)) {
    if (part.depth) return pack_blocks(span.kind, source, rows, cols, from, base);
    return keep_blocks(span.kind, source, rows, cols, base + from * (part.bytes / part.outputs));
  }
  with_element(spec, [&](auto element) {
    using T = decltype(element);
    if (part.depth) return put_rows<T>(base, part.depth, source, type, rows, cols, from);
    for (size_t i = 0, n = size_t(rows) * cols; i < n; ++i)
      if (kind == FD_EMBEDDING)
        put(reinterpret_cast<T*>(base) + from * cols + i, source, type, i);
      else
        reinterpret_cast<float*>(base)[from + i] = read(source, type, i);
  });
}

void embed(const fd_model& model, size_t token, float* x) {
  const size_t hidden = model.spec.hidden, column = token % kLanes;
  const Part& part = model.layout.find(model.spec.tied ? FD_HEAD : FD_EMBEDDING, 0);
  const Span& span = part.spans[0];
  if (coded(span.kind)) {
    if (model.spec.tied)
      unpack_column(span.kind, model.packed + span.offset + token / kLanes * span.stride, hidden, column, x);
    else
      unpack_row(span.kind, model.packed + part.offset + token * (part.bytes / part.outputs), hidden, x);
    for (size_t k = 0; k < hidden; ++k) x[k] *= model.spec.embedding_scale;
    return;
  }
  with_element(model.spec, [&](auto element) {
    using T = decltype(element);
    const bool tied = model.spec.tied;
    const T* row = tied ? model.weights<T>(FD_HEAD) + (token - column) * round_up(hidden, kDepth)
                        : model.weights<T>(FD_EMBEDDING) + token * hidden;
    for (size_t k = 0; k < hidden; ++k)
      x[k] = read(row, sizeof(T) == 2 ? FD_BF16 : FD_F32, tied ? at<T>(k, column) : k) * model.spec.embedding_scale;
  });
}

void compact(fd_model& model, Slot& slot, size_t start, const int32_t* rows, size_t count) {
  with_element(model.spec, [&](auto element) {
    using T = decltype(element);
    const size_t depth = model.key_depth(), width = model.value_width();
    for (size_t i = 0; i < count; ++i) {
      const size_t from = start + rows[i], to = start + i, f = from % kChunk, t = to % kChunk;
      if (from == to) continue;
      for (int32_t layer = 0; layer < model.spec.layers; ++layer)
        for (int32_t head = 0; head < model.spec.kv_heads; ++head) {
          const T* k = model.keys<T>(slot, from / kChunk, layer, head) + f / kLanes * kLanes * depth;
          T* k_to = model.keys<T>(slot, to / kChunk, layer, head) + t / kLanes * kLanes * depth;
          for (size_t d = 0; d < depth; ++d) k_to[at<T>(d, t % kLanes)] = k[at<T>(d, f % kLanes)];
          const T* v = model.values<T>(slot, from / kChunk, layer, head);
          T* v_to = model.values<T>(slot, to / kChunk, layer, head);
          for (size_t d = 0; d < width; ++d) {
            const size_t block = d / kLanes * kLanes * kChunk;
            v_to[block + at<T>(t, d % kLanes)] = v[block + at<T>(f, d % kLanes)];
          }
        }
    }
  });
}

int32_t make_subset(fd_model& model, const int32_t* ids, int32_t count) {
  if (count < 1) throw Fault{"a subset of the vocabulary needs a token"};
  for (int32_t i = 0; i < count; ++i)
    if (ids[i] < 0 || ids[i] >= model.spec.vocabulary)
      throw Fault{"token " + std::to_string(ids[i]) + " of the subset is not in the vocabulary"};
  Subset subset{size_t(count), {}, model.layout.find(FD_HEAD, 0)};
  Span& span = subset.part.spans[0];
  subset.part.outputs = count, span.blocks = round_up(count, kLanes) / kLanes, span.offset = 0;
  subset.weights.reserve(span.blocks * span.stride);
  const char* head = model.packed + model.layout.find(FD_HEAD, 0).offset;
  for (size_t i = 0; i < subset.count; ++i)
    copy_column(span.kind, head + ids[i] / kLanes * span.stride, ids[i] % kLanes,
                subset.weights.as<char>() + i / kLanes * span.stride, i % kLanes, span.stride);
  model.subsets.push_back(std::move(subset));
  return int32_t(model.subsets.size());
}

// Eight chains a piece, so that the processor multiplies while memory is read; each step can be undone, so that no
// change is lost. Pieces are numbered and their results added: who takes which does not matter.
uint64_t digest(const void* data, size_t bytes, int threads) {
  constexpr size_t kPiece = 1 << 20;
  auto mix = [](uint64_t h) {
    h *= 0x9e3779b97f4a7c15;
    return h ^ h >> 32;
  };
  Team team(threads);
  std::atomic<uint64_t> total{0};
  team.run([&](int thread) {
    for (size_t piece, end; team.claim(thread, (bytes + kPiece - 1) / kPiece, 1, &piece, &end);) {
      const uint64_t* word = static_cast<const uint64_t*>(data) + piece * (kPiece / 8);
      uint64_t chain[8] = {}, sum = mix(piece + 1);
      for (size_t left = std::min(kPiece, bytes - piece * kPiece) / 64; left; --left, word += 8)
        for (size_t i = 0; i < 8; ++i) chain[i] = mix(chain[i] ^ word[i]);
      for (uint64_t one : chain) sum = mix(sum ^ one);
      total += sum;
    }
  });
  return total;
}

double read_all(fd_model& model) {
  const char* from = model.packed + model.layout.skipped();
  const size_t lines = (model.layout.bytes() - model.layout.skipped()) / 64;
  std::atomic<uint64_t> total{0};
  const auto begun = std::chrono::steady_clock::now();
  model.team.run([&](int thread) {
    uint64_t sum[8] = {};
    for (size_t begin, end; model.team.claim(thread, lines, 4096, &begin, &end);) {
      const uint64_t* line = reinterpret_cast<const uint64_t*>(from + begin * 64);
      for (size_t i = 0; i < (end - begin) * 8; i += 8) {
        __builtin_prefetch(line + i + 512);
        for (size_t j = 0; j < 8; ++j) sum[j] += line[i + j];
      }
    }
    for (uint64_t part : sum) total += part;
  });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  return total.load() == 42 ? seconds + 1e-12 : seconds;  // so that the sum is wanted
}

}  // namespace foredraft

fd_model::fd_model(const fd_spec& given, const void* data, const foredraft::Tier& on,
                   std::shared_ptr<foredraft::Team> by)
    : spec(given),
      windows(given.windows, given.windows + given.layers),
      rope_of(given.rope_of, given.rope_of + given.layers),
      rope_dims(given.rope_dims, given.rope_dims + given.ropes),
      kinds(given.kinds, given.kinds ? given.kinds + 2 + 7 * given.layers : given.kinds),
      rope_scales(given.rope_scales, given.rope_scales + given.ropes),
      layout(given),
      packed(static_cast<const char*>(data)),
      tier(on),
      kernels(on.kernels),
      shared_team(std::move(by)), team(*shared_team),
      process(foredraft::process_number()),
      own(team.size()) {
  size_t turns = 0;
  for (int32_t dim : rope_dims) turns += dim / 2;
  rope_turns.assign(given.rope_turns, given.rope_turns + turns);
  spec.kinds = given.kinds ? kinds.data() : nullptr;
  spec.windows = windows.data();
  spec.rope_of = rope_of.data();
  spec.rope_dims = rope_dims.data();
  spec.rope_scales = rope_scales.data();
  spec.rope_turns = rope_turns.data();
}
