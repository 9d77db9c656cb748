// src/pattern/leaves/global.cpp
// global(count): the first `count` tokens attend to all keys, and all queries attend to them.
//
//   global(1) on 3 tokens     # # #
//                             # . .
//                             # . .
#include "base/int_math.h"
#include "pattern/leaves/check_argument.h"
#include "pattern/leaves/interval.h"

namespace keyhole {
namespace {

class Global final : public Node {
 public:
  explicit Global(Position count) : count_(count) {}

  bool allows(Position q, Position k) const override { return q < count_ || k < count_; }
  std::string text() const override { return say("global(", count_, ")"); }
  void strip(Span q, Span k, Position, Strip& out) const override {
    if (q.is_empty()) return;
    const Position edge = std::clamp(count_, k.begin, std::max(k.begin, k.end));
    out.append(k.begin, edge, Cover::all);
    if (q.end <= count_) out.append(edge, k.end, Cover::all);
    if (q.begin < count_ && count_ < q.end) out.append(edge, k.end, Cover::some);
  }
  bool sign(const Rect& rect, Signature& signature) const override {
    sign_edge(count_ - rect.q.begin, rect.q.size(), signature);
    sign_edge(count_ - rect.k.begin, rect.k.size(), signature);
    return true;
  }
  NodePtr in_residue(int64_t stride, int64_t residue) const override {
    return std::make_shared<Global>(ceil_div(count_ - residue, stride));
  }

 private:
  Position count_;
};

}  // namespace

Pattern global(int64_t count) {
  check_argument("global", "count", count, 0);
  return Pattern(std::make_shared<Global>(count));
}

}  // namespace keyhole
