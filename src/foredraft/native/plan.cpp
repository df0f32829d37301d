#include "plan.h"

#include <algorithm>
#include <set>

namespace foredraft {

Plan::Plan(fd_model& model, const fd_request& request) : model_(model), request_(request) {
  check();
  make_room();
  for (int32_t i = 0; i < request.steps; ++i)
    if (request.step[i] % 2 == 0) last_attention = i;
  size_t want = 0;
  for (size_t row = 0; row < sequence_.size(); row += kMaxRows) {
    Block block{row, std::min(sequence_.size() - row, size_t(kMaxRows)), want, 0, {}, {}, {}, nullptr};
    while (want < size_t(request.wanted) && size_t(request.want[want]) < row + block.rows) ++want;
    block.wanted = want - block.want;
    add_runs(block);
    add_tasks(block);
    blocks.push_back(std::move(block));
  }
}

void Plan::check() {
  const fd_request& q = request_;
  const int32_t layers = model_.spec.layers;
  auto require = [](bool fine, const char* wrong) {
    if (!fine) throw Fault{wrong};
  };
  require(q.sequences >= 0 && q.steps >= 0 && q.taps >= 0 && q.wanted >= 0, "a request has negative counts");
  require(q.subset >= 0 && size_t(q.subset) <= model_.subsets.size(), "there is no such subset of the vocabulary");
  for (int32_t i = 0; i < q.steps; ++i) {
    require(q.step[i] >= 0 && q.step[i] < 2 * layers, "there is no such sub-layer to run");
    require(!i || q.step[i] > q.step[i - 1], "sub-layers must be increasing");
  }
  for (int32_t i = 0; i < q.taps; ++i) require(q.tap[i] >= -1 && q.tap[i] < layers, "no such layer to tap");
  std::set<int32_t> seen;
  first_.push_back(0);
  for (int32_t s = 0; s < q.sequences; ++s) {
    const int32_t start = q.starts[s], slot = q.slots[s];
    require(slot >= 0 && slot < kMaxSlots, "slots are numbered from 0 to 65535");
    require(seen.insert(slot).second, "two sequences of a pass have the same slot");
    require(q.counts[s] >= 0 && q.counts[s] <= 1 << 24, "a request has too many rows");
    const auto found = model_.slots.find(slot);
    require(start >= 0, "rows cannot follow fewer than 0 tokens");
    require(size_t(start) <= (found == model_.slots.end() ? 0 : found->second.held),
            "rows follow more tokens than their slot holds");
    const size_t first = first_.back();
    for (int32_t r = 0; r < q.counts[s]; ++r) {
      const int32_t parent = q.parents[first + r];
      require(parent >= -1 && parent < r, "a row's parent must be -1 or a row before it");
      positions.push_back(parent < 0 ? start : positions[first + parent] + 1);
      require(positions.back() < size_t(model_.spec.context), "a row lies beyond the model's context");
      require(q.hidden || (q.tokens[first + r] >= 0 && q.tokens[first + r] < model_.spec.vocabulary),
              "a token is not in the vocabulary");
      sequence_.push_back(s);
    }
    first_.push_back(first + q.counts[s]);
  }
  for (int32_t i = 0; i < q.wanted; ++i)
    require(q.want[i] > (i ? q.want[i - 1] : -1) && size_t(q.want[i]) < sequence_.size(),
            "wanted rows must be increasing rows of the request");
}

void Plan::make_room() {
  for (int32_t s = 0; s < request_.sequences; ++s) {
    const size_t end = size_t(request_.starts[s]) + request_.counts[s];
    Slot& slot = model_.slots[request_.slots[s]];
    while (slot.pages.size() * kChunk < end) {
      Buffer page;
      page.reserve(model_.page_bytes());
      slot.pages.push_back(std::move(page));
    }
  }
}

void Plan::add_runs(Block& block) {
  for (size_t row = 0; row < block.rows;) {
    const size_t s = sequence_[block.row + row], first = first_[s], index = block.row + row - first;
    const size_t end = std::min(first_[s + 1], block.row + block.rows) - first;
    const int32_t* parents = request_.parents + first;
    size_t chain = 0;  // rows before it lie in place
    while (chain < end && parents[chain] == int32_t(chain) - 1) ++chain;
    const bool placed = index < chain;
    const size_t count = (placed ? chain : end) - index;
    Slot* slot = &model_.slots[request_.slots[s]];
    const Run run{slot, size_t(request_.starts[s]), row, count, index, placed, parents};
    const size_t* position = &positions[block.row + row];
    const size_t last = *std::max_element(position, position + count);
    if (!placed) {
      reach = std::max(reach, round_up(run.places() - run.tail() * kChunk, kChunk));
      depths = std::max(depths, last - run.start + 1);
    }
    add_units(block, run, last);
    row += count;
  }
}

void Plan::add_units(Block& block, const Run& run, size_t last) {
  const size_t group = model_.group(), flats = run.count * group, rows = kMaxRows;
  size_t most = group < rows ? rows / group * group : rows;
  // Few heads of few keys are halved and so on, where threads would wait for whoever has one more.
  const size_t heads = model_.spec.kv_heads, threads = model_.team.size(), units = heads * ((flats + most - 1) / most);
  if (units % threads && units < 4 * threads && run.count > 2 * threads && last < kSpan * kChunk && group < rows)
    most = std::min(most, (run.count + threads - 1) / threads * group);
  for (size_t flat = 0; flat < flats; flat += most)
    for (size_t head = 0; head < heads; ++head)
      block.units.push_back({block.runs.size(), head, flat, std::min(most, flats - flat), last / kChunk + 1, 1, 0});
  block.runs.push_back(run);
}

// Few units over many keys are split, so that no thread waits. Bits do not change: spans are folded in the same order.
void Plan::add_tasks(Block& block) {
  const size_t threads = model_.team.size();
  size_t floats = 0;
  if (threads > 1 && block.units.size() < 4 * threads)
    for (Unit& unit : block.units) {
      const size_t room = unit.spans() * (2 + model_.value_width()) * kMaxRows;
      if (unit.spans() < 2 || (floats + room) * sizeof(float) > kSplitBytes) continue;
      unit.tasks = unit.spans();
      unit.partial = floats;
      floats += room;
    }
  partials = std::max(partials, floats);
  block.left.reset(new std::atomic<int>[block.units.size()]);
  for (size_t u = 0; u < block.units.size(); ++u) {
    block.left[u] = int(block.units[u].tasks);
    for (size_t span = 0; span < block.units[u].tasks; ++span) block.tasks.push_back({u, span});
  }
}

}  // namespace foredraft
