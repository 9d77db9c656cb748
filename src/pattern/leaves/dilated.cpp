// src/pattern/leaves/dilated.cpp
// dilated(stride, count): every stride-th key on both sides of the query, `count` of them on each
// side, itself included; all of them when there is no count.
//
//   dilated(2, 2) on 5 tokens     # . # . .
//                                 . # . # .
//                                 # . # . #
//                                 . # . # .
//                                 . . # . #
#include <numeric>

#include "base/int_math.h"
#include "pattern/leaves/check_argument.h"
#include "pattern/leaves/dense.h"
#include "pattern/leaves/window.h"

namespace keyhole {
namespace {

class Dilated final : public Node {
 public:
  Dilated(int64_t stride, std::optional<int64_t> count)
      : stride_(stride), count_(count), band_(reach(), reach()) {}

  bool allows(Position q, Position k) const override {
    return (q - k) % stride_ == 0 && band_.allows(q, k);
  }
  std::string text() const override {
    if (!count_) return say("dilated(", stride_, ")");
    return say("dilated(", stride_, ", ", *count_, ")");
  }
  void strip(Span q, Span k, Position grain, Strip& out) const override {
    Strip near;
    band_.strip(q, k, grain, near);
    if (near.empty()) return;
    out = both(near, lattice(q, {near[0].begin, near.back().end}, grain));
  }
  bool sign(const Rect& rect, Signature& signature) const override {
    signature.add(floor_mod(rect.k.begin - rect.q.begin, stride_));
    return band_.sign(rect, signature);
  }
  // stride * (q - k) is a multiple of ours exactly when q - k is one of ours / gcd.
  NodePtr in_residue(int64_t stride, int64_t) const override {
    const int64_t rest = stride_ / std::gcd(stride_, stride);
    const Position reach_there = reach_in_residue(reach(), stride);
    if (rest == 1) return make_band(reach_there, reach_there);
    if (!count_) return std::make_shared<Dilated>(rest, std::nullopt);
    return std::make_shared<Dilated>(rest, floor_div(reach_there, rest) + 1);
  }
  int64_t dilation() const override { return stride_; }

 private:
  // The distance of the farthest key: count 1 is the query alone, count 0 none.
  Position reach() const { return count_ ? stride_ * (*count_ - 1) : kUnbounded; }

  // A band of n queries sees n neighbouring keys of every stride.
  Strip lattice(Span q, Span k, Position grain) const {
    Strip out;
    if (q.size() >= stride_ || grain > stride_) {
      out.append(k.begin, k.end, stride_ == 1 ? Cover::all : Cover::some);
      return out;
    }
    const Cover cover = q.size() == 1 ? Cover::all : Cover::some;
    Position begin = k.begin - floor_mod(k.begin - q.begin, stride_);  // the last one up to k.begin
    for (; begin < k.end; begin += stride_) {
      const Span seen = intersect({begin, begin + q.size()}, k);
      out.append(seen.begin, seen.end, cover);
    }
    return out;
  }

  int64_t stride_;
  std::optional<int64_t> count_;
  Window band_;
};

}  // namespace

Pattern dilated(int64_t stride) {
  check_argument("dilated", "stride", stride, 1);
  return Pattern(std::make_shared<Dilated>(stride, std::nullopt));
}

Pattern dilated(int64_t stride, int64_t count) {
  check_argument("dilated", "stride", stride, 1);
  check_argument("dilated", "count", count, 0);
  KEYHOLE_CHECK(count <= kUnbounded / stride, "dilated: stride * count is ", stride, " * ", count,
                "; the product must be ", kUnbounded, " or less; leave the count out for no limit");
  return Pattern(std::make_shared<Dilated>(stride, count));
}

}  // namespace keyhole
