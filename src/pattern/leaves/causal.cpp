// src/pattern/leaves/causal.cpp
// causal: a query attends to itself and to what came before. It is window(inf, 0) by its own name.
//
//   causal on 3 tokens     # . .
//                          # # .
//                          # # #
#include "pattern/leaves/window.h"

namespace keyhole {
namespace {

class Causal final : public Window {
 public:
  Causal() : Window(kUnbounded, 0) {}
  std::string text() const override { return "causal"; }
  NodePtr in_residue(int64_t, int64_t) const override { return shared_from_this(); }
};

}  // namespace

NodePtr make_causal() {
  static const NodePtr node = std::make_shared<Causal>();
  return node;
}

Pattern causal() { return Pattern(make_causal()); }

}  // namespace keyhole
