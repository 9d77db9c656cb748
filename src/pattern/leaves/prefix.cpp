// src/pattern/leaves/prefix.cpp
// prefix(count): causal, but every query also attends to the first `count` keys: a prompt that
// is read in both directions, then text that is generated from left to right.
//
//   prefix(2) on 4 tokens     # # . .
//                             # # . .
//                             # # # .
//                             # # # #
#include <algorithm>

#include "base/int_math.h"
#include "pattern/leaves/check_argument.h"
#include "pattern/leaves/interval.h"

namespace keyhole {
namespace {

class Prefix final : public IntervalLeaf {
 public:
  explicit Prefix(Position count) : count_(count) {}

  Span keys_of(Position q) const override { return {kBeforeAll, std::max(q + 1, count_)}; }
  std::string text() const override { return say("prefix(", count_, ")"); }
  bool sign(const Rect& rect, Signature& signature) const override {
    sign_edge(count_ - rect.k.begin, rect.k.size(), signature);
    sign_diagonal(0, rect, signature);
    return true;
  }
  NodePtr in_residue(int64_t stride, int64_t residue) const override {
    return std::make_shared<Prefix>(ceil_div(count_ - residue, stride));
  }

 private:
  Position count_;
};

}  // namespace

Pattern prefix(int64_t count) {
  check_argument("prefix", "count", count, 0);
  return Pattern(std::make_shared<Prefix>(count));
}

}  // namespace keyhole
