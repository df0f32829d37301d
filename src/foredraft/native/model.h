// A model: where its packed weights lie, its slots of keys and values, its threads and scratch.
#pragma once

#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "api.h"
#include "quantised_rows.h"
#include "team.h"

namespace foredraft {

constexpr size_t kChunk = 256;  // keys of a page of a slot, and of one step of attention
constexpr int32_t kMaxSlots = 1 << 16;

// Where input k of column c lies within a packed block.
template <class T>
constexpr size_t at(size_t k, size_t c) {
  return sizeof(T) == 2 ? k / 2 * 2 * kLanes + 2 * c + k % 2 : k * kLanes + c;
}

// Calls work with a value of the type that weights, keys and values have.
template <class Work>
void with_element(const fd_spec& spec, Work work) {
  if (spec.f32)
    work(float());
  else
    work(uint16_t());
}

// Zeroed memory, aligned to a cache line. Growing forgets the content.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& old) noexcept : data_(std::exchange(old.data_, nullptr)), bytes_(std::exchange(old.bytes_, 0)) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }

  void reserve(size_t bytes) {
    if (bytes <= bytes_) return;
    std::free(data_);
    bytes_ = 0;
    data_ = std::aligned_alloc(64, round_up(bytes, 64));
    if (!data_) throw std::bad_alloc();
    bytes_ = round_up(bytes, 64);
    std::memset(data_, 0, bytes_);
  }
  size_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

class Layout {
 public:
  explicit Layout(const fd_spec& spec);  // throws Fault
  const Part& find(int32_t part, int32_t layer) const { return parts_[part < FD_QKV ? part : kept(part, layer)]; }
  size_t bytes() const { return bytes_; }
  size_t skipped() const { return parts_[FD_EMBEDDING].bytes; }  // at the start; a pass reads few rows of it

 private:
  static size_t kept(int32_t part, int32_t layer) { return size_t(layer) * (FD_PARTS - FD_QKV) + part; }
  std::vector<Part> parts_;
  size_t bytes_ = 0;
};

void check_spec(const fd_spec& spec);  // throws Fault
long process_number();                 // 0 where processes do not fork
void pack(const fd_spec& spec, void* packed, int32_t part, int32_t layer, const void* source, int32_t type,
          int64_t rows, int64_t cols, int64_t first);

// Keys and values of one sequence, in pages of kChunk tokens. A page holds, for each layer and head, kChunk / 16 packed
// blocks of keys (columns are keys, inputs features) and then the values (columns are features, inputs keys).
struct Slot {
  std::vector<Buffer> pages;
  size_t held = 0;  // most tokens ever written; which of them count, the caller knows
};

struct Subset {
  size_t count;
  Buffer weights;
  Part part;  // the head's, narrower; offsets count from the weights
};

}  // namespace foredraft

struct fd_model {
  fd_model(const fd_spec& given, const void* data, const foredraft::Tier& on, std::shared_ptr<foredraft::Team> by);

  fd_spec spec;
  std::vector<int32_t> windows, rope_of, rope_dims, kinds;
  std::vector<float> rope_scales, rope_turns;
  foredraft::Layout layout;
  const char* packed;
  foredraft::Tier tier;
  const foredraft::Kernels* kernels;
  std::shared_ptr<foredraft::Team> shared_team;  // which other models may have too
  foredraft::Team& team;
  long process;
  std::map<int32_t, foredraft::Slot> slots;
  std::vector<foredraft::Subset> subsets;
  foredraft::Buffer shared;
  std::vector<foredraft::Buffer> own;  // one a thread

  size_t element() const { return spec.f32 ? 4 : 2; }
  size_t group() const { return spec.heads / spec.kv_heads; }
  size_t key_depth() const { return foredraft::round_up(spec.head_dim, foredraft::kDepth); }
  size_t value_width() const { return foredraft::round_up(spec.head_dim, foredraft::kLanes); }
  size_t head_elements() const { return foredraft::kChunk * (key_depth() + value_width()); }  // of a page
  size_t page_bytes() const { return size_t(spec.layers) * spec.kv_heads * head_elements() * element(); }
  template <class T>
  T* keys(const foredraft::Slot& slot, size_t chunk, size_t layer, size_t head) const {
    return slot.pages[chunk].as<T>() + (layer * spec.kv_heads + head) * head_elements();
  }
  template <class T>
  T* values(const foredraft::Slot& slot, size_t chunk, size_t layer, size_t head) const {
    return keys<T>(slot, chunk, layer, head) + foredraft::kChunk * key_depth();
  }
  template <class T>
  const T* weights(int32_t part, int32_t layer = 0) const {
    const foredraft::Part& found = layout.find(part, layer);
    return found.bytes ? reinterpret_cast<const T*>(packed + found.offset) : nullptr;
  }
};

namespace foredraft {

float widen_half(uint16_t bits);
void embed(const fd_model& model, size_t token, float* x);  // into x [hidden], scaled
void forward(fd_model& model, const fd_request& request);
void compact(fd_model& model, Slot& slot, size_t start, const int32_t* rows, size_t count);
int32_t make_subset(fd_model& model, const int32_t* ids, int32_t count);
double read_all(fd_model& model);
uint64_t digest(const void* data, size_t bytes, int threads);

}  // namespace foredraft
