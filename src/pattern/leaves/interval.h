// src/pattern/leaves/interval.h
// The base of all leaves in which a query sees one interval of keys that moves only forward with
// the query. Such a leaf says which interval; everything about bands and rectangles follows.
#pragma once

#include <algorithm>

#include "pattern/node.h"

namespace keyhole {

class IntervalLeaf : public Node {
 public:
  // The keys that the query at position q sees. Both ends grow with q, or stay.
  virtual Span keys_of(Position q) const = 0;

  bool allows(Position q, Position k) const override {
    const Span keys = keys_of(q);
    return keys.begin <= k && k < keys.end;
  }
  void strip(Span q, Span k, Position grain, Strip& out) const override;
  Cover cover(const Rect& rect) const override;
  void draw(const Rect& rect, BitRows& bits) const override;

 protected:
  // Interval ends before and behind every position.
  static constexpr Position kBeforeAll = -kUnbounded, kBehindAll = kUnbounded;
};

// Signs an edge that lies `distance` behind the first of `size` places. All edges before the first
// place look the same from inside, and so do all edges behind the last.
inline void sign_edge(Position distance, Position size, Signature& signature) {
  signature.add(std::clamp<Position>(distance, 0, size));
}
// The same for an edge along a diagonal: it parts the pairs with k - q <= diagonal from the others.
inline void sign_diagonal(Position diagonal, const Rect& rect, Signature& signature) {
  const Position relative = diagonal - (rect.k.begin - rect.q.begin);
  signature.add(std::clamp<Position>(relative, -rect.q.size(), rect.k.size() - 1));
}

}  // namespace keyhole
