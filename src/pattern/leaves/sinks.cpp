// src/pattern/leaves/sinks.cpp
// sinks(count): every query attends to the first `count` keys.
//
//   sinks(1) on 3 tokens     # . .
//                            # . .
//                            # . .
#include "base/int_math.h"
#include "pattern/leaves/check_argument.h"
#include "pattern/leaves/interval.h"

namespace keyhole {
namespace {

class Sinks final : public IntervalLeaf {
 public:
  explicit Sinks(Position count) : count_(count) {}

  Span keys_of(Position) const override { return {kBeforeAll, count_}; }
  std::string text() const override { return say("sinks(", count_, ")"); }
  bool sign(const Rect& rect, Signature& signature) const override {
    sign_edge(count_ - rect.k.begin, rect.k.size(), signature);
    return true;
  }
  NodePtr in_residue(int64_t stride, int64_t residue) const override {
    return std::make_shared<Sinks>(ceil_div(count_ - residue, stride));
  }

 private:
  Position count_;
};

}  // namespace

Pattern sinks(int64_t count) {
  check_argument("sinks", "count", count, 0);
  return Pattern(std::make_shared<Sinks>(count));
}

}  // namespace keyhole
