// The plain C interface of the native pass. Python loads it through ctypes; nothing is thrown across it.
//
// Functions return 0, or -1 with the reason in fd_error(). Every argument is checked: no value, only a bad pointer, can
// crash the process. Calls on one model wait for each other, so any thread may make them.
#pragma once

#include <stdint.h>

#include "select.h"

enum { FD_VERSION = 5 };  // of this interface and of the packed form together

enum fd_type {
  FD_BF16, FD_F16, FD_F32, FD_F64,
  FD_Q8_0, FD_Q4_0, FD_Q4_1, FD_Q5_0, FD_Q5_1, FD_Q4_K, FD_Q5_K, FD_Q6_K,  // blocks of a GGUF file, as they lie there
  FD_TYPES
};

// The tensors of the packed form. Matrices are [outputs, inputs] as checkpoints hold them; vectors are [outputs].
enum fd_part {
  FD_EMBEDDING,  // [vocabulary, hidden], absent where tied
  FD_HEAD,       // [vocabulary, hidden]
  FD_NORM,
  FD_QKV,  // of each layer from here on; outputs in the order q, k, v
  FD_O,
  FD_GATE,
  FD_UP,
  FD_DOWN,
  FD_QKV_BIAS,
  FD_O_BIAS,
  FD_GATE_BIAS,
  FD_UP_BIAS,
  FD_DOWN_BIAS,
  FD_BEFORE_ATTENTION,
  FD_AFTER_ATTENTION,
  FD_BEFORE_GATED,
  FD_AFTER_GATED,
  FD_Q_NORM,
  FD_K_NORM,
  FD_PARTS
};

typedef struct fd_spec {
  int32_t vocabulary, hidden, layers, heads, kv_heads, head_dim, mlp, context;
  int32_t norm_before, norm_after;  // whether attention and the gated layer have a norm there
  int32_t qk_norm;                  // 0: none, 1: over each head, 2: over the full width
  int32_t qkv_bias, o_bias, mlp_bias;
  int32_t activation;  // 0: silu, 1: gelu (tanh form)
  int32_t tied;
  int32_t f32;    // weights, keys and values in f32 instead of bf16
  int32_t ropes;  // different rotations
  float eps, attention_scale, attention_cap, logits_cap;  // a cap of 0: none
  float embedding_scale, residual_scale, logits_divisor;
  const int32_t* windows;    // [layers] 0: none
  const int32_t* rope_of;    // [layers] -1: none
  const int32_t* rope_dims;  // [ropes]
  const float* rope_scales;  // [ropes] multiplies cosines and sines
  const float* rope_turns;   // [sum of rope_dims / 2] radians a token
  // [2 + 7 * layers] of the embedding, the head, then of each layer q, k, v, o, gate, up, down: FD_BF16 or a type in
  // blocks, which products then run in. Null: all are of the element type.
  const int32_t* kinds;
} fd_spec;

typedef struct fd_model fd_model;

// Rows of several slots, in one pass; see Rows in models/model.py. Row r of a sequence lies at start + r of its slot.
typedef struct fd_request {
  int32_t sequences;
  const int32_t *slots, *starts, *counts;  // [sequences] counts: rows
  const int32_t* tokens;                   // [rows]; ignored where hidden is given
  const int32_t* parents;                  // [rows] within the sequence; -1: the slot's first start tokens
  const float* hidden;                     // [rows, hidden] instead of embeddings, or null
  int32_t steps;                           // sub-layers to run
  const int32_t* step;                     // [steps] increasing; 2 * layer: attention, 2 * layer + 1: gated layer
  int32_t taps;
  const int32_t* tap;  // [taps] layers whose output is wanted; -1: the input
  int32_t wanted;
  const int32_t* want;  // [wanted] increasing rows of the whole request
  int32_t subset;       // 0: the whole vocabulary, else from fd_subset
  float* logits;        // [wanted, vocabulary or the subset's size], or null
  float* tapped;        // [taps, wanted, hidden]
} fd_request;

FD_API int fd_version();
FD_API const char* fd_error();  // of this thread's last failed call

// Bytes of the packed form; 0 for a spec that makes no sense.
FD_API uint64_t fd_packed_bytes(const fd_spec* spec);
// Packs outputs `first` and up of one part from source rows [rows, cols]; vectors have one column. Vectors are f32. A
// part in blocks is packed from blocks of its own type, row after row; cols counts their values.
FD_API int fd_pack(const fd_spec* spec, void* packed, int32_t part, int32_t layer, const void* source, int32_t type,
                   int64_t rows, int64_t cols, int64_t first);
// A digest of `bytes` (a multiple of 64) by so many threads, whose number does not change it. Every change of a single
// word changes it, others do but for one in 2^64.
FD_API int fd_digest(const void* packed, uint64_t bytes, int32_t threads, uint64_t* digest);

// `packed` must outlive the model, 64-byte aligned.
FD_API int fd_open(const fd_spec* spec, const void* packed, uint64_t bytes, const char* tier, int32_t threads,
                   fd_model** model);
FD_API void fd_close(fd_model* model);
FD_API int fd_forward(fd_model* model, const fd_request* request);
// Keeps rows (increasing) of those that follow `start`, moved together.
FD_API int fd_compact(fd_model* model, int32_t slot, int32_t start, const int32_t* rows, int32_t count);
FD_API int fd_release(fd_model* model, int32_t slot);
// Copies these columns of the head together; *subset is then the number to ask for. Logits have the same bits.
FD_API int fd_subset(fd_model* model, const int32_t* ids, int32_t count, int32_t* subset);
// Reads all packed weights that a pass reads, by the same threads: the time no pass can beat.
FD_API int fd_floor(fd_model* model, double* seconds);
// Bytes of scratch and of the slots' keys and values.
FD_API int fd_memory(fd_model* model, uint64_t* working, uint64_t* slots);

// The law of a row of logits; see models/native/sampling.py. Weights are e^((logit - peak) / temperature), 0 where
// logit - peak < cut. Of a residual: what is left of that law less `minus`, and 0 for the tokens `without`.
typedef struct fd_law {
  const void* row;  // [size]
  int32_t size, wide, top_k, narrow;  // wide: float64; narrow: 1: no loops in AVX-512, 2: none in AVX2 either
  double temperature, top_p, min_p;   // as in SamplingParams, temperature above 0
  double *tops, *sums;                // [ceil(size / 128)] working memory, kept with the law
  double peak, cut, total;            // total: of the weights, once fd_law_total was called
  double scale;                       // of a residual: the total of the law it is what is left of
  const struct fd_law* minus;         // of a residual: q, its total known, of the same size; or null
  const int32_t* without;             // [withouts] tokens
  int32_t withouts;
} fd_law;

typedef struct fd_place {  // whose clocks: see Noise.race
  uint64_t seed;
  uint32_t position, choice;
} fd_place;

// Sets tops, peak and cut.
FD_API int fd_law_make(fd_law* law);  // 1: the largest logit, which `peak` holds, is not finite; -1: no memory
FD_API double fd_law_total(fd_law* law);  // also sets sums; without `minus`, sums of blocks that lose no token are kept
// These need the total.
FD_API double fd_law_at(const fd_law* law, int32_t token);
FD_API void fd_law_dense(const fd_law* law, double* probabilities);
FD_API int32_t fd_law_draw(const fd_law* law, double uniform);
// The token whose clock rings first; the law is no residual.
FD_API int32_t fd_law_race(const fd_law* law, fd_place place);
FD_API void fd_gaps(fd_place place, int32_t block, double* gaps);  // [128] for tests: 1 - u of a block's clocks
