// src/pattern/leaves/lambda.cpp
// lambda(function, name): whatever the function says. It can only be asked pair by pair, so a plan
// of it takes time proportional to q_len * k_len to compile; a leaf or a composition of leaves does
// not.
//
//   lambda([](Position q, Position k) { return (q + k) % 2 == 0; }, "even")     # . #
//                                                                               . # .
//                                                                               # . #
#include "base/check.h"
#include "pattern/node.h"

namespace keyhole {
namespace {

class Lambda final : public Node {
 public:
  Lambda(std::function<bool(Position, Position)> function, std::string name)
      : function_(std::move(function)), name_(std::move(name)) {}

  bool allows(Position q, Position k) const override { return function_(q, k); }
  std::string text() const override { return "lambda(<" + name_ + ">)"; }
  bool is_opaque() const override { return true; }

  void draw(const Rect& rect, BitRows& bits) const override {
    for (Position q = rect.q.begin; q < rect.q.end; ++q) {
      uint64_t* row = bits.row(int32_t(q - rect.q.begin));
      for (Position k = rect.k.begin; k < rect.k.end; ++k) {
        row[(k - rect.k.begin) >> 6] |= uint64_t{function_(q, k)} << ((k - rect.k.begin) & 63);
      }
    }
  }

 private:
  std::function<bool(Position, Position)> function_;
  std::string name_;
};

}  // namespace

Pattern lambda(std::function<bool(Position q, Position k)> allows, std::string name) {
  KEYHOLE_CHECK(allows != nullptr,
                "lambda: no function given; expected one that takes the positions "
                "of a query and of a key and says whether they attend");
  return Pattern(std::make_shared<Lambda>(std::move(allows), std::move(name)));
}

}  // namespace keyhole
