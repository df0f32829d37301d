// Chains of earlier positions with the same last k tokens, as in LZ77; the candidates on them vote, guess by guess.
// retrieval/portable.py is the same in Python, to the bit.
#include "retrieval.h"

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

using Tokens = std::vector<int32_t>;

namespace {

constexpr int LEVELS = 3, LENGTH[LEVELS] = {1, 3, 8};  // tokens that a level's chains have in common
constexpr int OWN_LINKS = 24, OTHER_LINKS = 6;         // followed on each level, where the tokens are the same
constexpr int ASTRAY = 4;                              // times as many in all: chains share slots
constexpr int DEPTH = 64, EDIT = 8, WALKS = 4;
constexpr size_t CANDIDATES = 128;
constexpr int32_t END = -1;

uint32_t hash(const int32_t* last, int count) {
  uint32_t value = 0;
  while (count-- > 0) {
    value = (value ^ uint32_t(last[-count])) * 0x9E3779B1u;
    value ^= value >> 15;
  }
  return value;
}

struct Candidate {
  int32_t source, position, matched, beyond;  // beyond: what matches behind the match and one edit
  double factor;
};
struct Node {
  int32_t token, parent, bucket, depth;
  double path, votes;
  Candidate best;
  std::vector<Candidate> followers;
};

}  // namespace

struct fd_index {
  Tokens tokens, link[LEVELS], head[LEVELS];
  int64_t run = 0;  // tokens since the last end of a document

  fd_index() : head{Tokens(64, END), Tokens(64, END), Tokens(64, END)} {}

  int32_t& latest(int level, const int32_t* last) {
    return head[level][hash(last, LENGTH[level]) & (head[level].size() - 1)];
  }

  void extend(const int32_t* fresh, size_t count) {
    size_t at = tokens.size(), slots = head[0].size();
    const size_t size = at + count;
    if (size > INT32_MAX) throw std::bad_alloc();
    if (size > tokens.capacity()) {  // a quarter more: doubling would waste as much as it holds
      tokens.reserve(size + size / 4);
      for (auto& level : link) level.reserve(size + size / 4);
    }
    tokens.insert(tokens.end(), fresh, fresh + count);
    for (auto& level : link) level.resize(size);
    while (slots < size) slots *= 2;
    if (slots > head[0].size()) {
      for (auto& level : head) Tokens(slots, END).swap(level);
      at = run = 0;
    }
    for (; at < size; ++at) {
      run = tokens[at] == END ? 0 : run + 1;
      for (int level = 0; level < LEVELS; ++level)
        link[level][at] = run < LENGTH[level] ? END : std::exchange(latest(level, &tokens[at]), int32_t(at));
    }
  }
};

namespace {

struct Search {
  const fd_query& query;
  Tokens context;  // the end of the text, and the path to the node that is expanded
  std::vector<Node> nodes, open;
  int64_t steps = 0;
  int walks = 0;

  const Tokens& tokens(int32_t source) const { return query.source[source]->tokens; }

  // How many tokens match, going back from `at` and from `skip` tokens before the end of the context.
  int match(const Tokens& text, int64_t at, int64_t skip, int most) const {
    int64_t mine = int64_t(context.size()) - 1 - skip;
    int matched = 0;
    while (matched < most && at >= 0 && mine >= 0 && text[at] == context[mine]) ++matched, --at, --mine;
    return matched;
  }

  void add(std::vector<Candidate>& found, int32_t source, int64_t end, int matched, int rank, bool hint) const {
    const Tokens& text = tokens(source);
    const int64_t at = end - matched;
    int beyond = at >= 0 ? match(text, at, matched + 1, EDIT) : 0;  // the text has a token more
    if (at >= 1 && text[at] != END)                                 // it has one less; it has another
      beyond = std::max({beyond, match(text, at - 1, matched, EDIT), match(text, at - 1, matched + 1, EDIT)});
    // Where a refused copy might go on counts for less than any match, unless a prediction is expected to go on there.
    double factor = hint && query.kind[source] != 1 ? 1.0 : double(1 << beyond) / (1.0 + 0.05 * rank);
    if (query.kind[source] == 1) factor *= 256.0;
    found.push_back({source, int32_t(end + 1), matched, beyond, factor});
  }

  void walk(std::vector<Candidate>& found, int32_t source, bool at_end) {
    fd_index& index = *query.source[source];
    const int most = query.kind[source] == 0 ? OWN_LINKS : OTHER_LINKS;
    int64_t deepest = INT64_MAX;  // a longer match that is no older was seen a level up
    int rank = 0;
    for (int level = LEVELS; level-- > 0 && (query.kind[source] == 0 || rank < most);) {
      if (context.size() < size_t(LENGTH[level])) continue;
      int64_t at = index.latest(level, &context.back()), lowest = INT64_MAX;
      int links = 0, same = 0;
      for (; at >= 0 && same < most && links < ASTRAY * most; lowest = at, at = index.link[level][at]) {
        ++links, ++steps;
        if (source == 0 && at_end && at + 1 == int64_t(index.tokens.size())) continue;
        const int matched = match(index.tokens, at, 0, DEPTH);
        if (matched < LENGTH[level]) continue;  // other tokens in the same slot
        ++same;
        if (level + 1 < LEVELS && matched >= LENGTH[level + 1] && at >= deepest) continue;
        if (found.size() < CANDIDATES) add(found, source, at, matched, rank++, false);
      }
      deepest = lowest;
    }
  }

  void look(std::vector<Candidate>& found, int depth) {
    ++walks;
    for (int32_t source = 0; source < query.sources && !context.empty(); ++source) walk(found, source, depth == 0);
    for (int32_t i = 0; i < query.hinted && !context.empty() && depth == 0; ++i) {
      const int32_t source = query.hints[2 * i], at = query.hints[2 * i + 1];
      if (source < 0 || source >= query.sources || at < 0 || size_t(at) >= tokens(source).size()) continue;
      const auto same = [&](const Candidate& one) { return one.source == source && one.position == at; };
      if (std::none_of(found.begin(), found.end(), same))
        add(found, source, at - 1, match(tokens(source), at - 1, 0, DEPTH), i, true);
    }
  }

  // The token that is copied next, or END. A text that is copied to its end goes on in the path itself.
  int32_t next(const Candidate& one, int depth) const {
    const int64_t further = int64_t(one.position) - int64_t(tokens(one.source).size());
    if (further < 0) return tokens(one.source)[one.position];
    return one.source == 0 && further < depth ? context[context.size() - depth + further] : END;
  }

  int32_t bucket(const Candidate& best, int supporters, double share) const {
    const int m = best.matched, length = m < 4 ? m : m < 6 ? 4 : m < 9 ? 5 : m < 17 ? 6 : 7;
    const int beyond = best.beyond < 2 ? 0 : best.beyond < 5 ? 1 : 2, votes = share < 0.5 ? 0 : share < 1.0 ? 1 : 2;
    return (((query.kind[best.source] * 8 + length) * 3 + beyond) * 3 + std::min(supporters, 3) - 1) * 3 + votes;
  }

  // Opens the choices after a node, the most voted first.
  void expand(std::vector<Candidate> found, int32_t parent, int depth, double path) {
    const auto dead = [&](const Candidate& one) { return next(one, depth) == END; };
    if (walks < WALKS && std::all_of(found.begin(), found.end(), dead)) found.clear(), look(found, depth);
    std::vector<Node> choices;
    double all = 0;
    for (const Candidate& one : found) {
      const int32_t token = next(one, depth);
      if (token == END) continue;
      auto choice = std::find_if(choices.begin(), choices.end(), [&](const Node& c) { return c.token == token; });
      if (choice == choices.end()) choice = choices.insert(choice, {token, parent, 0, depth + 1, path, 0.0, one, {}});
      Candidate& best = choice->best;
      if (one.matched > best.matched || (one.matched == best.matched && one.beyond > best.beyond)) best = one;
      choice->followers.push_back({one.source, one.position + 1, one.matched + 1, one.beyond, one.factor});
      const double weight = double(1 << 2 * std::min(one.matched, 12)) * one.factor;
      choice->votes += weight;
      all += weight;
    }
    std::stable_sort(choices.begin(), choices.end(), [](auto& a, auto& b) { return a.votes > b.votes; });
    choices.resize(std::min(choices.size(), size_t(query.branches) + 1), Node{});
    for (Node& node : choices) {
      node.bucket = bucket(node.best, int(node.followers.size()), node.votes / all);
      node.path *= query.probability[node.bucket];
      open.push_back(std::move(node));
    }
  }

  int run() {
    const Tokens& text = tokens(0);
    const Tokens tail(text.end() - std::min<size_t>(text.size(), DEPTH + EDIT + 1), text.end());
    context = tail;
    expand({}, -1, 0, 1.0);
    while (!open.empty() && int(nodes.size()) < query.limit) {
      const auto first = std::max_element(open.begin(), open.end(), [](auto& a, auto& b) { return a.path < b.path; });
      if (first->path < query.floor) break;
      const int32_t place = int32_t(nodes.size());
      nodes.push_back(std::move(*first));
      open.erase(first);
      const Node& node = nodes.back();
      const int32_t row[] = {node.token, node.parent, node.bucket, node.best.source, node.best.position};
      std::copy(row, row + 5, query.guess + 5 * place);
      query.path[place] = node.path;
      context = tail;
      context.resize(tail.size() + node.depth);
      for (int32_t i = place; i >= 0; i = nodes[i].parent) context[tail.size() + nodes[i].depth - 1] = nodes[i].token;
      if (place + 1 < query.limit) expand(node.followers, place, node.depth, node.path);
    }
    return int(nodes.size());
  }
};

template <class Work>
int guarded(Work work) try {
  return work();
} catch (const std::exception&) {  // no memory, and nothing else
  return -1;
}

}  // namespace

int fd_index_open(fd_index** index) { return guarded([&] { return *index = new fd_index, 0; }); }
void fd_index_close(fd_index* index) { delete index; }
int fd_index_extend(fd_index* index, const int32_t* tokens, int64_t count) {
  return guarded([&] { return index->extend(tokens, size_t(count)), 0; });
}

int64_t fd_index_read(const fd_index* index, int32_t* tokens, uint64_t* bytes) {
  if (tokens) std::copy(index->tokens.begin(), index->tokens.end(), tokens);
  *bytes = sizeof *index + 4 * index->tokens.capacity();
  for (int i = 0; i < LEVELS; ++i) *bytes += 4 * (index->link[i].capacity() + index->head[i].capacity());
  return int64_t(index->tokens.size());
}

int fd_retrieve(const fd_query* query, int64_t* steps) {
  return guarded([&] {
    query->source[0]->extend(query->fresh_token, size_t(query->fresh));
    Search search{*query, {}, {}, {}};
    const int count = query->limit > 0 ? search.run() : 0;
    *steps = search.steps;
    return count;
  });
}
