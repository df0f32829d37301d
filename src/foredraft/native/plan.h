// What a request asks for, checked, and how its rows are walked: blocks of up to 64, each with its work on attention.
#pragma once

#include <memory>

#include "model.h"

namespace foredraft {

constexpr size_t kSpan = 4;               // chunks that are folded together before they join the rest
constexpr size_t kSplitBytes = 16 << 20;  // of partial results, at most

// Neighbouring rows of one sequence in a block. Rows in place see the keys in the slot up to their own; the others see
// the slot's first `start`, then those of their ancestors.
struct Run {
  Slot* slot;
  size_t start;              // of the sequence
  size_t row, count, index;  // first row in the block, how many, and the first within its sequence
  bool placed;
  const int32_t* parents;  // of the sequence

  size_t tail() const { return start / kChunk; }  // first chunk that holds rows of this pass
  size_t places() const { return start + index + count; }
};

// Query rows of a run that share a key head: `flat` is row * group + the head within its group, from the run's first.
struct Unit {
  size_t run, head, flat, flats;
  size_t chunks;   // that its rows see
  size_t tasks;    // 1, or a task for each span
  size_t partial;  // where its spans' results lie, in floats

  size_t spans() const { return (chunks + kSpan - 1) / kSpan; }
};

struct Task {
  size_t unit, span;
};

struct Block {
  size_t row, rows;     // of the request
  size_t want, wanted;  // of the wanted rows
  std::vector<Run> runs;
  std::vector<Unit> units;
  std::vector<Task> tasks;
  std::unique_ptr<std::atomic<int>[]> left;  // [units] tasks
};

struct Plan {
  // Throws Fault for a request that makes no sense, before anything changes; then gives the slots room.
  Plan(fd_model& model, const fd_request& request);

  std::vector<size_t> positions;  // [rows]
  std::vector<Block> blocks;
  int32_t last_attention = -1;  // step after which only wanted rows matter
  size_t reach = kChunk;        // places that rows out of place may have to look at
  size_t depths = 1;            // of the deepest row out of place, within its pass
  size_t partials = 0;          // floats of partial results

 private:
  void check();
  void make_room();
  void add_runs(Block& block);
  void add_units(Block& block, const Run& run, size_t last);
  void add_tasks(Block& block);

  fd_model& model_;
  const fd_request& request_;
  std::vector<size_t> sequence_, first_;  // [rows] and [sequences + 1]
};

}  // namespace foredraft
