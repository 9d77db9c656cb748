// src/pattern/leaves/block_band.cpp
// blocks(size): attention inside blocks of `size` tokens. With a radius, which only bigbird uses,
// also to the blocks beside it: |q / size - k / size| <= radius.
//
//   blocks(2) on 5 tokens     # # . . .
//                             # # . . .
//                             . . # # .
//                             . . # # .
//                             . . . . #
#include "pattern/leaves/block_band.h"

#include "base/int_math.h"
#include "pattern/leaves/check_argument.h"
#include "pattern/leaves/interval.h"

namespace keyhole {
namespace {

class BlockBand final : public IntervalLeaf {
 public:
  BlockBand(int64_t size, int64_t radius) : size_(size), radius_(radius) {}

  Span keys_of(Position q) const override {
    const Position block_begin = q - floor_mod(q, size_);
    return {block_begin - radius_ * size_, block_begin + (radius_ + 1) * size_};
  }
  // With a radius it is what bigbird means without random and global blocks.
  std::string text() const override {
    if (radius_ == 0) return say("blocks(", size_, ")");
    return say("bigbird(", size_, ", ", 2 * radius_ + 1, ", 0, 0, 0)");
  }
  bool sign(const Rect& rect, Signature& signature) const override {
    signature.add(floor_mod(rect.q.begin, size_));
    signature.add(floor_mod(rect.k.begin, size_));
    signature.add(floor_div(rect.k.begin, size_) - floor_div(rect.q.begin, size_));
    return true;
  }
  // A stride that divides the size leaves blocks of size / stride in every residue class.
  NodePtr in_residue(int64_t stride, int64_t residue) const override {
    if (size_ % stride != 0) return Node::in_residue(stride, residue);
    return std::make_shared<BlockBand>(size_ / stride, radius_);
  }

 private:
  int64_t size_, radius_;
};

}  // namespace

NodePtr make_block_band(int64_t size, int64_t radius) {
  return std::make_shared<BlockBand>(size, radius);
}

Pattern blocks(int64_t size) {
  check_argument("blocks", "size", size, 1);
  return Pattern(make_block_band(size, 0));
}

}  // namespace keyhole
