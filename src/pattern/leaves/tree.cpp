// src/pattern/leaves/tree.cpp
// tree(parents): token i continues token parents[i] (-1: it begins a text of its own); a query
// attends to itself and its ancestors. What speculative decoding verifies in one pass.
//
//   tree(-1, 0, 0, 1)      0 - 1 - 3     # . . .
//                            \           # # . .
//                             2          # . # .
//                                        # # . #
#include <algorithm>
#include <queue>

#include "base/int_math.h"
#include "pattern/leaves/array_text.h"
#include "pattern/leaves/segments.h"
#include "pattern/node.h"

namespace keyhole {
namespace {

class Tree final : public Node {
 public:
  explicit Tree(const std::vector<int64_t>& parents)
      : parents_(parents.begin(), parents.end()),
        chain_begin_(parents.size()),
        enter_(parents.size()),
        leave_(parents.size()) {
    number_subtrees();
    for (int32_t i = 0; i < size(); ++i) {
      chain_begin_[i] = i > 0 && parents_[i] == i - 1 ? chain_begin_[i - 1] : i;
    }
  }

  bool allows(Position q, Position k) const override {
    if (q < 0 || q >= size() || k < 0 || k >= size()) return false;
    return enter_[k] <= enter_[q] && enter_[q] < leave_[k];
  }

  std::string text() const override {
    return list_text("tree", std::vector<int64_t>(parents_.begin(), parents_.end()), "parents");
  }

  // All paths to the root are walked at once, from the last token down; paths that meet go on as
  // one that counts for several queries. A chain i, i-1, i-2, ... is one step.
  void strip(Span q, Span k, Position grain, Strip& out) const override {
    const Span rows = intersect(q, {0, size()});
    if (rows.is_empty() || k.is_empty()) return;
    std::priority_queue<Path> paths;
    for (Position row = rows.begin; row < rows.end; ++row) paths.push({int32_t(row), 1});

    std::vector<Segment> found;  // descending
    const auto see = [&](Position begin, Position end, Cover cover) {
      found.push_back({std::max(begin, k.begin), std::min(end, k.end), cover});
    };
    int64_t steps_left = 64 + 4 * rows.size() + 4 * (k.size() / grain);
    while (!paths.empty() && paths.top().at >= k.begin) {
      Path path = paths.top();
      if (--steps_left < 0) {
        see_the_rest(q, {k.begin, path.at + 1}, grain, see);
        break;
      }
      for (paths.pop(); !paths.empty() && paths.top().at == path.at; paths.pop()) {
        path.queries += paths.top().queries;
      }
      const int32_t next = paths.empty() ? -1 : paths.top().at;  // where another path may join
      const int32_t begin = std::max(chain_begin_[path.at], next + 1);
      see(begin, path.at + 1, path.queries == q.size() ? Cover::all : Cover::some);
      const int32_t parent = parents_[begin];
      if (parent >= 0) paths.push({parent, path.queries});
    }
    Strip exact;
    for (size_t i = found.size(); i-- > 0;) {
      exact.append(found[i].begin, found[i].end, found[i].cover);
    }
    append_blurred(exact, grain, out);
  }

  void draw(const Rect& rect, BitRows& bits) const override {
    const Span rows = intersect(rect.q, {0, size()});
    for (Position q = rows.begin; q < rows.end; ++q) {
      uint64_t* row = bits.row(int32_t(q - rect.q.begin));
      const Span keys = intersect(rect.k, {0, q + 1});  // ancestors come first
      for (Position k = keys.begin; k < keys.end; ++k) {
        const bool is_ancestor = enter_[k] <= enter_[q] && enter_[q] < leave_[k];
        row[(k - rect.k.begin) >> 6] |= uint64_t{is_ancestor} << ((k - rect.k.begin) & 63);
      }
    }
  }

 private:
  struct Path {
    int32_t at;
    int64_t queries;  // how many queries of the band have come this way
    bool operator<(const Path& other) const { return at < other.at; }
  };

  Position size() const { return Position(parents_.size()); }

  // Numbers the tokens so that a subtree is the range [enter, leave). Parents come before their
  // children, so two passes do; no recursion, for chains may be a million tokens deep.
  void number_subtrees() {
    std::vector<int32_t> subtree(parents_.size(), 1), next(parents_.size());
    for (size_t i = parents_.size(); i-- > 0;) {
      if (parents_[i] >= 0) subtree[parents_[i]] += subtree[i];
    }
    int32_t next_root = 0;
    for (size_t i = 0; i < parents_.size(); ++i) {
      int32_t& cursor = parents_[i] >= 0 ? next[parents_[i]] : next_root;
      enter_[i] = cursor;
      leave_[i] = cursor += subtree[i];
      next[i] = enter_[i] + 1;
    }
  }

  // A path of many turns is not followed to its end: one query with grain 1 is asked key by key,
  // and the others are told that they see some.
  template <class See>
  void see_the_rest(Span q, Span keys, Position grain, See see) const {
    if (q.size() > 1 || grain > 1) return see(keys.begin, keys.end, Cover::some);
    for (Position k = keys.end - 1; k >= keys.begin; --k) {
      if (allows(q.begin, k)) see(k, k + 1, Cover::all);
    }
  }

  std::vector<int32_t> parents_;
  std::vector<int32_t>
      chain_begin_;  // the first of the tokens i, i-1, ... that are each other's parents
  std::vector<int32_t> enter_, leave_;
};

}  // namespace

Pattern tree(std::vector<int64_t> parents) {
  KEYHOLE_CHECK(!parents.empty(), "tree: no parents given; expected one per token");
  narrow(int64_t(parents.size()), "tree: the number of tokens");
  KEYHOLE_CHECK(parents[0] == -1, "tree: the parent of token 0 is ", parents[0],
                "; the first token is a root: expected -1");
  for (size_t i = 0; i < parents.size(); ++i) {
    KEYHOLE_CHECK(parents[i] >= -1 && parents[i] < int64_t(i), "tree: the parent of token ", i,
                  " is ", parents[i], "; expected an earlier token (0 to ", int64_t(i) - 1,
                  ") or -1 for a root");
  }
  return Pattern(std::make_shared<Tree>(parents));
}

}  // namespace keyhole
