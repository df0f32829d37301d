// One pass: the rows of a request, block by block, walked through the layers by all threads.
#pragma once

#include "plan.h"

namespace foredraft {

constexpr size_t kGated = 8;      // blocks of gate, and as many of up, taken at a time, at most
constexpr size_t kFetchBlocks = 4, kFetchBytes = 2048;
constexpr size_t kStoreRows = 4;  // rows whose keys and values are stored at a time

// Attention over some of the keys, not yet divided by its sum: fold() joins two.
struct State {
  float *max, *sum, *out;  // [64], [64], [64, value_width]
};

struct Seen {
  size_t begin, end;  // keys of a chunk
};

// A thread's own scratch. Every thread has all rows' residuals and updates them alike, which saves barriers.
template <class T>
struct Own {
  float* x;       // [64, hidden]
  Rows<T> normed;  // what a norm or attention gave
  float* gated;   // [64, 2 * kGated blocks]
  float* line;    // one row's features
  float* scores;  // [64, Plan::reach]
  float* logical; // [kChunk] scores of one row in path order
  T* weights;     // [64, kChunk] of the values
  float* out;     // [64, value_width]
  State span, unit;
  T* values;      // a chunk of one row's path
  T* narrow;      // one head
  int32_t* path;
  int thread;
};

template <class T>
class Pass {
 public:
  Pass(fd_model& model, const fd_request& request);
  void run();

 private:
  void reserve();
  size_t carve(char* base, Own<T>* own) const;
  size_t carve_shared(char* base);

  void work(int thread);
  void input(const Block& block, Own<T>& own);
  void normalise(const float* x, size_t rows, int32_t norm, int32_t part, int32_t layer, Own<T>& own);
  void project(int32_t part, int32_t layer, const Rows<T>& x, size_t rows, float* y, const Own<T>& own);
  void fetch(int32_t part, int32_t layer, const Own<T>& own) const;
  void fetch_after(int32_t step, const Own<T>& own) const;
  void add(size_t rows, int32_t bias, int32_t norm, int32_t layer, Own<T>& own);
  void store(const Block& block, int32_t layer, Own<T>& own);
  void store_row(const Block& block, const Run& run, size_t row, int32_t layer, size_t head, size_t heads, Own<T>& own);
  void turn(float* head, size_t row, int32_t rope) const;
  void gate(const Block& block, int32_t layer, Own<T>& own);
  void logits(const Block& block, Own<T>& own);
  void tap(const Block& block, int32_t from, int32_t to, const Own<T>& own);

  void attend(Block& block, int32_t layer, Own<T>& own);
  void span(const Block& block, const Unit& unit, size_t span, int32_t layer, Own<T>& own);
  void placed(const Block& block, const Unit& unit, size_t chunk, int32_t layer, Own<T>& own);
  void gathered(const Block& block, const Unit& unit, size_t from, size_t to, int32_t layer, Own<T>& own);
  void gather_values(const Run& run, size_t chunk, size_t keys, int32_t layer, size_t head, Own<T>& own);
  float highest(float* scores, Seen keys);
  float soften(float* scores, Seen keys, float max, T* weights);
  void fold(const State& into, size_t i, float max, float sum, const float* out);
  void finish(const Block& block, const Unit& unit, int32_t layer, const State& state);
  State partial(const Unit& unit, size_t span) const;

  void matmul(const T* w, size_t blocks, size_t k, const T* x, size_t ldx, size_t rows, float* y, size_t ldy,
              ptrdiff_t far = 0) const {
    if constexpr (sizeof(T) == 2)
      kernels_.matmul_bf16(w, blocks, k, x, ldx, int(rows), y, ldy, far);
    else
      kernels_.matmul_f32(w, blocks, k, x, ldx, int(rows), y, ldy, far);
  }
  void narrow(const float* in, size_t n, T* out) const {
    if constexpr (sizeof(T) == 2)
      kernels_.narrow(in, n, out);
    else
      std::memcpy(out, in, n * sizeof(float));
  }

  fd_model& model_;
  const fd_spec& spec_;
  const fd_request& request_;
  const Kernels& kernels_;
  Plan plan_;
  const size_t hidden_, q_width_, kv_width_, qkv_stride_, o_depth_, y_stride_, act_stride_;
  const size_t group_, key_depth_, value_width_, half_;  // half_: rope features a row, all rotations together
  // shared between the threads
  float *qkv_, *y_, *cos_, *sin_, *partial_;
  T* q_;
  const bool split_;   // whether a cell of what attention gives is of two heads, which different threads may have
  float* raw_;         // [64, q_width] what it gave, where that is so
  Rows<T> attended_, act_;
};

}  // namespace foredraft
