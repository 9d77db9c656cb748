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
  // one that counts for several queries. Inside the band that is one step a token; before it, a
  // chain i, i-1, i-2, ... is one step.
  void strip(Span q, Span k, Position grain, Strip& out) const override {
    const Span rows = intersect(q, {0, size()});
    if (rows.is_empty() || k.is_empty()) return;
    std::vector<Segment> found;  // descending
    const auto see = [&](Position begin, Position end, Cover cover) {
      found.push_back({std::max(begin, k.begin), std::min(end, k.end), cover});
    };
    const auto cover_of_path = [&](int64_t queries) {
      return queries == q.size() ? Cover::all : Cover::some;
    };

    std::priority_queue<Path> paths;
    std::vector<int64_t> queries(size_t(rows.size()), 1);
    for (Position row = rows.end - 1; row >= rows.begin; --row) {
      const int64_t here = queries[size_t(row - rows.begin)];
      see(row, row + 1, cover_of_path(here));
      const int32_t parent = parents_[size_t(row)];
      if (parent >= rows.begin) {
        queries[size_t(parent - rows.begin)] += here;
      } else if (parent >= 0) {
        paths.push({parent, here});
      }
    }
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
      const int32_t begin = std::max(chain_begin_[size_t(path.at)], next + 1);
      see(begin, path.at + 1, cover_of_path(path.queries));
      const int32_t parent = parents_[size_t(begin)];
      if (parent >= 0) paths.push({parent, path.queries});
    }
    Strip exact;
    for (size_t i = found.size(); i-- > 0;) {
      exact.append(found[i].begin, found[i].end, found[i].cover);
    }
    append_blurred(exact, grain, out);
  }

  // A token sees what its parent sees, and itself: a row is a copy of an earlier one and a bit.
  void draw(const Rect& rect, BitRows& bits) const override {
    const Span rows = intersect(rect.q, {0, size()});
    for (Position q = rows.begin; q < rows.end; ++q) {
      uint64_t* row = bits.row(int32_t(q - rect.q.begin));
      const int32_t parent = parents_[size_t(q)];
      if (parent >= rows.begin) {
        std::copy_n(bits.row(int32_t(parent - rect.q.begin)), bits.words(), row);
      } else {
        draw_path(parent, rect.k, row);
      }
      if (rect.k.begin <= q && q < rect.k.end) {
        set_bits(row, q - rect.k.begin, q - rect.k.begin + 1);
      }
    }
  }

  std::optional<KnownSizes> sizes() const override {
    return KnownSizes{.made_by = "tree",
                      .way_out =
                          "give one parent for each key; the text before the drafts is a chain: "
                          "-1, 0, 1, ...",
                      .most_q = size(),
                      .least_k = size(),
                      .most_k = size()};
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

  // The tokens of `keys` on the way from `at` to its root. After a few turns asking is quicker.
  void draw_path(Position at, Span keys, uint64_t* row) const {
    for (int turns = 0; turns < 32; ++turns) {
      if (at < 0 || at < keys.begin) return;
      const Span chain = intersect(keys, {chain_begin_[size_t(at)], at + 1});
      set_bits(row, chain.begin - keys.begin, chain.end - keys.begin);
      at = parents_[size_t(chain_begin_[size_t(at)])];
    }
    for (Position k = std::max<Position>(keys.begin, 0); k <= std::min(at, keys.end - 1); ++k) {
      if (allows(at, k)) set_bits(row, k - keys.begin, k - keys.begin + 1);
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
