// src/pattern/at.cpp
// at(q_positions, k_positions, pattern): the pattern, asked about given positions instead of the
// usual ones. Query i stands at q_positions[i], key j at k_positions[j]; others do not attend.
//
//   at(q=[0, 2], k=[2, 1, 0], causal)     . . #       the query at 0 sees the key at 0,
//                                         # # #       the one at 2 sees all three
#include <algorithm>
#include <memory>

#include "base/check.h"
#include "base/int_math.h"
#include "pattern/node.h"
#include "pattern/positions.h"

namespace keyhole {
namespace {

// With more runs than this in a band of queries, the band is asked as one span of positions.
constexpr size_t kMaxQueryRuns = 8;

// For one head of one batch entry. A query index is its usual position less `q_offset`.
class ResolvedAt final : public Node {
 public:
  ResolvedAt(std::string text, NodePtr child, PositionRuns q, PositionRuns k, int64_t q_offset)
      : text_(std::move(text)),
        child_(std::move(child)),
        q_(std::move(q)),
        k_(std::move(k)),
        q_offset_(q_offset) {}

  bool allows(Position q, Position k) const override {
    const int64_t i = q - q_offset_;
    return i >= 0 && i < q_.size() && k >= 0 && k < k_.size() && child_->allows(q_[i], k_[k]);
  }
  std::string text() const override { return text_; }

  void strip(Span q, Span k, Position grain, Strip& out) const override {
    const Span queries = q_indexes(q), keys = k_indexes(k);
    if (queries.is_empty() || keys.is_empty()) return;
    const std::vector<PositionRuns::Run> k_runs = k_.within(keys), q_runs = q_.within(queries);
    if (q_runs.size() > kMaxQueryRuns) {
      out = strip_of(hull(q_runs.data(), q_runs.data() + q_runs.size()), k_runs, grain);
    } else {
      for (const PositionRuns::Run& run : q_runs) {
        const Strip seen = strip_of(run.positions(), k_runs, grain);
        out = &run == &q_runs.front() ? seen : joined(out, seen);
      }
    }
    if (queries.size() < q.size()) out = joined(out, Strip());  // the others see nothing
  }

  // Where both sides are single runs, it is the child's rectangle elsewhere.
  bool sign(const Rect& rect, Signature& signature) const override {
    const Span queries = q_indexes(rect.q), keys = k_indexes(rect.k);
    if (queries.is_empty() || keys.is_empty()) return false;
    const std::vector<PositionRuns::Run> k_runs = k_.within(keys), q_runs = q_.within(queries);
    if (k_runs.size() != 1 || q_runs.size() != 1) return false;
    signature.add(queries.begin + q_offset_ - rect.q.begin);
    signature.add(queries.size());
    signature.add(keys.begin - rect.k.begin);
    signature.add(keys.size());
    const Rect there = {q_runs[0].positions(), k_runs[0].positions()};
    const Cover cover = child_->cover(there);
    signature.add(int64_t(cover));
    return cover != Cover::some || child_->sign(there, signature);
  }

  Kind kind() const override { return Kind::at; }
  std::vector<NodePtr> children() const override { return {child_}; }
  bool is_opaque() const override { return child_->is_opaque(); }

 private:
  Span q_indexes(Span q) const {
    return intersect({q.begin - q_offset_, q.end - q_offset_}, {0, q_.size()});
  }
  Span k_indexes(Span k) const { return intersect(k, {0, k_.size()}); }

  // Runs of `grain` keys and more are asked one by one. Shorter neighbours are asked together, by
  // the cover of all positions around them, so that scattered keys cost no more than others.
  Strip strip_of(Span q_positions, const std::vector<PositionRuns::Run>& k_runs,
                 Position grain) const {
    Strip out, seen;
    const PositionRuns::Run* run = k_runs.data();
    const PositionRuns::Run* const last = run + k_runs.size();
    while (run != last) {
      if (run->indexes.size() >= grain) {
        seen.clear();
        child_->strip(q_positions, run->positions(), grain, seen);
        for (const Segment& segment : seen) {
          out.append(segment.begin - run->shift, segment.end - run->shift, segment.cover);
        }
        ++run;
        continue;
      }
      const PositionRuns::Run* const first = run;
      while (run != last && run->indexes.size() < grain &&
             run->indexes.end - first->indexes.begin <= grain) {
        ++run;
      }
      out.append(first->indexes.begin, (run - 1)->indexes.end,
                 child_->cover({q_positions, hull(first, run)}));
    }
    return out;
  }

  std::string text_;
  NodePtr child_;
  PositionRuns q_, k_;
  int64_t q_offset_;
};

using Positions = std::shared_ptr<const std::vector<Position>>;

class At final : public Node {
 public:
  At(Positions q, Positions k, NodePtr child)
      : q_(std::move(q)), k_(std::move(k)), child_(std::move(child)) {}

  bool allows(Position, Position) const override {
    KEYHOLE_ASSERT(false, "at was asked before it was resolved");
  }
  std::string text() const override { return text_of(*q_, *k_, *child_); }
  NodePtr resolve(const Scope& scope) const override {
    const Shape& shape = scope.shape;
    const NodePtr child = child_->resolve(scope);
    const std::vector<Position> q = slice("q", *q_, shape.q_len, scope);
    const std::vector<Position> k = slice("k", *k_, shape.k_len, scope);
    // The text of this head alone: heads at other positions must not look equal to the planner.
    return std::make_shared<ResolvedAt>(text_of(q, k, *child), child, PositionRuns(q),
                                        PositionRuns(k), shape.q_offset());
  }
  bool is_resolved() const override { return false; }
  void for_each_asked(const Asked& asked, const VisitAsked& visit) const override {
    Asked there = asked;
    there.asked_by = "at";
    there.gives_positions = true;
    there.q = hull_of(slice("q", *q_, asked.scope.shape.q_len, asked.scope));
    there.k = hull_of(slice("k", *k_, asked.scope.shape.k_len, asked.scope));
    visit(*child_, there);
  }
  // Arrays of another size are [batch, length] or [batch, heads, length], or fit nothing.
  bool depends_on_heads(int64_t q_len, int64_t k_len) const override {
    return int64_t(q_->size()) != q_len || int64_t(k_->size()) != k_len ||
           child_->depends_on_heads(q_len, k_len);
  }
  Kind kind() const override { return Kind::at; }
  std::vector<NodePtr> children() const override { return {child_}; }
  bool is_opaque() const override { return child_->is_opaque(); }

 private:
  static std::string text_of(const std::vector<Position>& q, const std::vector<Position>& k,
                             const Node& child) {
    return say("at(q=", list_text(q, "positions"), ", k=", list_text(k, "positions"), ", ",
               child.text(), ")");
  }

  static Span hull_of(const std::vector<Position>& positions) {
    if (positions.empty()) return {};
    const auto [least, most] = std::minmax_element(positions.begin(), positions.end());
    return {*least, *most + 1};
  }

  // The positions of one head out of [length], [batch, length] or [batch, heads, length].
  static std::vector<Position> slice(const char* name, const std::vector<Position>& all,
                                     int64_t length, const Scope& scope) {
    const int64_t per_batch = checked_mul(scope.shape.batch, length, "at");
    const int64_t per_head =
        checked_mul(scope.shape.batch, checked_mul(scope.shape.heads, length, "at"), "at");
    const int64_t size = int64_t(all.size());
    int64_t row = 0;
    if (size == length) {
      row = 0;
    } else if (size == per_batch) {
      row = scope.batch;
    } else if (size == per_head) {
      row = scope.batch * scope.shape.heads + scope.head;
    } else {
      throw Error(ErrorKind::usage,
                  say("at: ", name, " has ", size, " positions; accepted: ", length, " [length], ",
                      per_batch, " [batch, length] or ", per_head, " [batch, heads, length]"));
    }
    return {all.begin() + row * length, all.begin() + (row + 1) * length};
  }

  Positions q_, k_;
  NodePtr child_;
};

Positions checked(const char* name, std::vector<Position> positions) {
  for (size_t i = 0; i < positions.size(); ++i) {
    KEYHOLE_CHECK(positions[i] >= -kMaxPosition && positions[i] <= kMaxPosition, "at: position ", i,
                  " of ", name, " is ", positions[i], "; accepted: ", -kMaxPosition, " to ",
                  kMaxPosition);
  }
  return std::make_shared<const std::vector<Position>>(std::move(positions));
}

}  // namespace

Pattern at(std::vector<int64_t> q_positions, std::vector<int64_t> k_positions,
           const Pattern& pattern) {
  Positions q = checked("q", std::move(q_positions)), k = checked("k", std::move(k_positions));
  return Pattern(std::make_shared<At>(std::move(q), std::move(k), pattern.node()));
}

}  // namespace keyhole
