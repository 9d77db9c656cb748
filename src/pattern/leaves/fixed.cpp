// src/pattern/leaves/fixed.cpp
// fixed(stride, columns): a query attends, causally, to its own block of `stride` tokens and to the
// last `columns` tokens of every block before it, which sum their block up (Sparse Transformers).
//
//   fixed(3, 1) on 7 tokens     # . . . . . .
//                               # # . . . . .
//                               # # # . . . .
//                               . . # # . . .
//                               . . # # # . .
//                               . . # # # # .
//                               . . # . . # #
#include <algorithm>

#include "base/int_math.h"
#include "pattern/leaves/segments.h"
#include "pattern/node.h"

namespace keyhole {
namespace {

class Fixed final : public Node {
 public:
  Fixed(int64_t stride, int64_t columns) : stride_(stride), columns_(columns) {}

  bool allows(Position q, Position k) const override {
    return k <= q && (floor_div(q, stride_) == floor_div(k, stride_) ||
                      floor_mod(k, stride_) >= stride_ - columns_);
  }

  std::string text() const override { return say("fixed(", stride_, ", ", columns_, ")"); }

  void strip(Span q, Span k, Position grain, Strip& out) const override {
    if (q.is_empty() || k.is_empty()) return;
    const Position own = block_begin(q.begin);  // the block of the first query
    append_summaries({k.begin, std::min(k.end, own)}, grain, out);
    // Queries of later blocks see only the summary of `own`; up to the first query all see that
    // alike.
    const bool is_one_block = own == block_begin(q.end - 1);
    const Position seen_alike = is_one_block ? own : own + stride_ - columns_;
    const Position first_after = std::max(seen_alike, q.begin + 1);
    append_inside(k, own, std::min(seen_alike, q.end), Cover::some, out);
    append_inside(k, seen_alike, first_after, Cover::all, out);
    append_inside(k, first_after, q.end, Cover::some, out);
  }

  // Far to the left of the diagonal only the columns count; near it, both corners.
  bool sign(const Rect& rect, Signature& signature) const override {
    const bool is_far = rect.k.end <= block_begin(rect.q.begin);
    signature.add(is_far);
    signature.add(floor_mod(rect.k.begin, stride_));
    if (!is_far) signature.add(rect.k.begin - rect.q.begin);
    return true;
  }

  void draw(const Rect& rect, BitRows& bits) const override {
    Strip seen;
    for (Position q = rect.q.begin; q < rect.q.end; ++q) {
      if (q == rect.q.begin || q == block_begin(q) || rect.k.end > block_begin(q)) {
        seen.clear();  // else the row is like the one before it
        strip({q, q + 1}, rect.k, 1, seen);
      }
      for (const Segment& part : seen) {
        set_bits(bits.row(int32_t(q - rect.q.begin)), part.begin - rect.k.begin,
                 part.end - rect.k.begin);
      }
    }
  }

  // When blocks hold whole classes, the columns of a class are again the last ones of its blocks.
  NodePtr in_residue(int64_t stride, int64_t residue) const override {
    if (stride_ % stride != 0 || residue < 0 || residue >= stride) {
      return Node::in_residue(stride, residue);
    }
    const int64_t block = stride_ / stride;
    const int64_t columns = block - ceil_div(stride_ - columns_ - residue, stride);
    if (columns >= block) return causal().node();
    if (columns <= 0) return (causal() & blocks(block)).node();
    return std::make_shared<Fixed>(block, columns);
  }

 private:
  Position block_begin(Position p) const { return floor_div(p, stride_) * stride_; }

  // The summary columns of whole blocks inside `keys`.
  void append_summaries(Span keys, Position grain, Strip& out) const {
    if (keys.is_empty()) return;
    if (columns_ == stride_) return out.append(keys.begin, keys.end, Cover::all);
    Position block = block_begin(keys.begin);
    if (columns_ < grain && stride_ - columns_ < grain) {
      // Neither a column nor a gap is as wide as the caller's grain.
      return append_inside(keys, block + stride_ - columns_, keys.end, Cover::some, out);
    }
    for (; block < keys.end; block += stride_) {
      append_inside(keys, block + stride_ - columns_, block + stride_, Cover::all, out);
    }
  }

  int64_t stride_, columns_;
};

}  // namespace

Pattern fixed(int64_t stride, int64_t columns) {
  KEYHOLE_CHECK(stride >= 1 && stride <= kUnbounded, "fixed: stride is ", stride,
                "; expected 1 to ", kUnbounded);
  KEYHOLE_CHECK(columns >= 1 && columns <= stride, "fixed: columns is ", columns,
                "; expected 1 to the stride, ", stride);
  return Pattern(std::make_shared<Fixed>(stride, columns));
}

}  // namespace keyhole
