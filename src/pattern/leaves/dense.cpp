// src/pattern/leaves/dense.cpp
// dense: every query attends to every key. Its opposite, ~dense, is the pattern of no pairs.
//
//   dense on 3 tokens     # # #
//                         # # #
//                         # # #
#include "pattern/leaves/dense.h"

#include "pattern/leaves/interval.h"

namespace keyhole {
namespace {

class Dense final : public IntervalLeaf {
 public:
  Span keys_of(Position) const override { return {kBeforeAll, kBehindAll}; }
  std::string text() const override { return "dense"; }
  bool sign(const Rect&, Signature&) const override { return true; }  // all rectangles are alike
  NodePtr in_residue(int64_t, int64_t) const override { return shared_from_this(); }
};

}  // namespace

NodePtr make_dense() {
  static const NodePtr node = std::make_shared<Dense>();
  return node;
}
NodePtr make_nothing() {
  static const NodePtr node = make_not(make_dense());
  return node;
}

bool is_dense(const Node& node) { return dynamic_cast<const Dense*>(&node) != nullptr; }
bool is_nothing(const Node& node) {
  return node.kind() == Node::Kind::negation && is_dense(*node.children().front());
}

Pattern dense() { return Pattern(make_dense()); }

}  // namespace keyhole
