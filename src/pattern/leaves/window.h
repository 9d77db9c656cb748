// src/pattern/leaves/window.h
// Window, the leaf of all diagonal bands, for its siblings and for simplify.cpp, which joins bands.
#pragma once

#include "pattern/leaves/interval.h"

namespace keyhole {

class Window : public IntervalLeaf {
 public:
  Window(Position left, Position right) : left_(left), right_(right) {}

  Position left() const { return left_; }
  Position right() const { return right_; }

  Span keys_of(Position q) const override { return {q - left_, q + right_ + 1}; }
  std::string text() const override;
  bool sign(const Rect& rect, Signature& signature) const override;
  NodePtr in_residue(int64_t stride, int64_t residue) const override;

 private:
  Position left_, right_;
};

// The pairs with -left <= k - q <= right, in the shortest words: dense, causal, ~dense or a window.
NodePtr make_band(Position left, Position right);
NodePtr make_causal();

// A reach among the positions of one residue class; infinity stays what it is.
Position reach_in_residue(Position reach, int64_t stride);

}  // namespace keyhole
