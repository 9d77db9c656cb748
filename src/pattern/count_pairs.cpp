// src/pattern/count_pairs.cpp
// Counts the pairs of a pattern without visiting them: what a strip calls `all` is counted as an
// area, what it calls `some` by halves of its queries, and rectangles with equal signatures once.
#include <algorithm>
#include <unordered_map>

#include "base/int_math.h"
#include "pattern/node.h"
#include "pattern/simplify.h"
#include "pattern/smallest_shape.h"

namespace keyhole {
namespace {

class PairCounter {
 public:
  explicit PairCounter(NodePtr node) : node_(std::move(node)) {}

  int64_t count(const Rect& rect) {
    if (rect.q.is_empty() || rect.k.is_empty()) return 0;
    const Cover cover = node_->cover(rect);
    if (cover == Cover::none) return 0;
    if (cover == Cover::all) return rect.q.size() * rect.k.size();
    if (rect.q.size() == 1) return count_row(rect);

    const std::string name = name_of(rect);
    if (name.empty()) return count_halves(rect);
    if (const auto known = counts_.find(name); known != counts_.end()) return known->second;
    const int64_t pairs = is_too_wide(rect) ? count_pieces(rect) : count_halves(rect);
    if (counts_.size() < kMaxNames) counts_.emplace(name, pairs);
    return pairs;
  }

 private:
  static constexpr size_t kMaxNames = 1 << 16;  // some 10 MB; beyond that, names hardly repeat
  // Rectangles of ever new widths would never meet again; pieces of one width do.
  static constexpr int64_t kWidest = 64;  // times their height
  static bool is_too_wide(const Rect& rect) { return rect.k.size() / kWidest > rect.q.size(); }

  int64_t count_pieces(const Rect& rect) {
    const Position width = kWidest * rect.q.size();
    int64_t pairs = 0;
    for (Position k = rect.k.begin; k < rect.k.end; k += width) {
      pairs += count({rect.q, {k, std::min(k + width, rect.k.end)}});
    }
    return pairs;
  }

  int64_t count_halves(const Rect& rect) {
    const Position middle = rect.q.begin + rect.q.size() / 2;
    return count_band({{rect.q.begin, middle}, rect.k}) +
           count_band({{middle, rect.q.end}, rect.k});
  }

  int64_t count_band(const Rect& rect) {
    Strip seen;
    node_->strip(rect.q, rect.k, rect.q.size(), seen);
    int64_t pairs = 0;
    for (const Segment& segment : seen) {
      const Rect part = {rect.q, {segment.begin, segment.end}};
      pairs += segment.cover == Cover::all ? part.q.size() * part.k.size() : count(part);
    }
    return pairs;
  }

  int64_t count_row(const Rect& rect) {
    Strip seen;
    node_->strip(rect.q, rect.k, 1, seen);
    int64_t pairs = 0;
    for (const Segment& segment : seen) {
      if (segment.cover == Cover::all) {
        pairs += segment.end - segment.begin;
        continue;
      }
      for (Position k = segment.begin; k < segment.end; ++k) {
        pairs += node_->allows(rect.q.begin, k) ? 1 : 0;
      }
    }
    return pairs;
  }

  // Equal names, equal counts; empty when the pattern cannot say.
  std::string name_of(const Rect& rect) const {
    Signature signature;
    signature.add(rect.q.size());
    signature.add(rect.k.size());
    return node_->sign(rect, signature) ? signature.bytes() : std::string();
  }

  NodePtr node_;
  std::unordered_map<std::string, int64_t> counts_;
};

}  // namespace

int64_t count_pairs(const Pattern& pattern, int64_t q_len, int64_t k_len) {
  const Shape shape = smallest_shape(pattern, q_len, k_len);
  const NodePtr node = pattern.for_head(shape).node();
  checked_mul(q_len, k_len, "count_pairs");
  const Position first = shape.q_offset();
  return PairCounter(simplify(node)).count({{first, first + q_len}, {0, k_len}});
}

}  // namespace keyhole
