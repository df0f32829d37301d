// Trained heads through the same plain C interface: a chain of guesses from what a target's layers put out, in one call.
//
// A row enters a block of one layer, a model of its own, as P [n_e(embedding of the next token); n_h(f)]; f is made of
// the tapped layers' outputs, or is what the block itself put out for the row before. See models/heads/modules.py.
#pragma once

#include "api.h"

typedef struct fd_heads fd_heads;

// Matrices are [outputs, inputs] in bf16.
typedef struct fd_heads_spec {
  int32_t taps, feeds_normed;  // whether f of the next row is taken after the block's last norm
  float eps;
  const float* fuse_norms;     // [taps, hidden]
  const uint16_t* fuse;        // [hidden, taps * hidden] null: f is the only tap
  const float *embedding_norm, *hidden_norm;  // [hidden]
  const uint16_t* enter;       // [hidden, 2 * hidden]
  const int32_t* vocabulary;   // [the block's vocabulary] the target's tokens, increasing
} fd_heads_spec;

typedef struct fd_chain {
  int32_t slot, start, rows;  // rows that follow the first `start` of the block's slot; at least one
  int32_t goes_on;            // the one state given is the block's own of the row before
  const float* const* states; // [taps, or 1] of [rows, hidden]
  const int32_t* tokens;      // [rows] the token after each
  int32_t length;             // guesses, at most
  const double* least;        // [length] no guess where the path so far is less likely than this
  fd_law* laws;               // [length] over rows of f32 that can be written; null: the likeliest are guessed
  const double* uniforms;     // [length] draws from laws over the target's vocabulary; null: races over the block's
  fd_place place;             // of the first race
  int32_t guesses, broken;    // how many there are; broken: the next has no law, because of logits that are no numbers
  int32_t* guess;             // [length]
  double* path;               // [length] how sure each guess and all before it are: chances, or leads of races
  int32_t* second;            // [length] the next likeliest in the place of each guess, -1: none; not of what was drawn
  double* beside;             // [length] how sure it and all before it are
  float* state;               // [hidden] what the row after the last one run starts from
  float* logits;              // [the block's vocabulary] of the last row run
} fd_chain;

// fd_law_race where the law's tokens stand for others: token i has the clock of ids[i]. [size] The two that ring first (-1:
// none), and how far ahead they are: see `lead` in planning/acceptance.py.
FD_API void fd_law_race_as(const fd_law* law, const int32_t* ids, fd_place place, int32_t* first, double* lead);
// A model with the threads and the tier of another; calls on the two wait for each other.
FD_API int fd_open_beside(const fd_spec* spec, const void* packed, uint64_t bytes, const fd_model* other,
                          fd_model** model);
// `block` was opened beside `target`; both must outlive the heads. What the spec points to is copied.
FD_API int fd_heads_open(fd_model* target, fd_model* block, const fd_heads_spec* spec, fd_heads** heads);
FD_API void fd_heads_close(fd_heads* heads);
FD_API int fd_heads_run(fd_heads* heads, fd_chain* chain);
