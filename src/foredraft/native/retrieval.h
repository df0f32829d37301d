// Retrieval through the same plain C interface: an index over token lists, and guesses copied from several of them.
//
// An index is read by any number of calls at a time or changed by one; whoever shares it brings the lock.
#pragma once

#include <stdint.h>

#include "select.h"

typedef struct fd_index fd_index;

typedef struct fd_query {
  int32_t sources;  // the first is the text that is to go on; the others are read only
  int32_t hinted;
  fd_index* const* source;     // [sources]
  const int32_t* kind;         // [sources] 0: the text itself, 1: a prediction, 2: a memory
  const int32_t* hints;        // [hinted, 2] source and position to copy from, beside those that are found
  int32_t fresh, branches;     // branches: alternatives to the first choice, 0: a chain
  const int32_t* fresh_token;  // [fresh] the text's new tokens, indexed first
  int32_t limit, reserved;
  double floor;               // no guess whose path is less likely than this
  const double* probability;  // [FD_BUCKETS]
  int32_t* guess;             // [limit, 5] token, parent, bucket, source, position copied from
  double* path;               // [limit] the chance that the guess and all that it builds on are accepted
} fd_query;

// kind 3, length of the match 8, of what matches beyond one edit 3, supporters 3, share of the vote 3
enum { FD_BUCKETS = 3 * 8 * 3 * 3 * 3 };

FD_API int fd_index_open(fd_index** index);
FD_API void fd_index_close(fd_index* index);
FD_API int fd_index_extend(fd_index* index, const int32_t* tokens, int64_t count);  // -1 ends a document
// Returns how many tokens it holds, and copies them unless `tokens` is null. *bytes: that it occupies.
FD_API int64_t fd_index_read(const fd_index* index, int32_t* tokens, uint64_t* bytes);
// Returns the number of guesses, or -1. *steps: links followed.
FD_API int fd_retrieve(const fd_query* query, int64_t* steps);
