// src/pattern/leaves/window.cpp
// window(left, right): query q attends to keys q - left ... q + right, both ends included.
//
//   window(1, 0) on 4 tokens     # . . .
//                                # # . .
//                                . # # .
//                                . . # #
#include "pattern/leaves/window.h"

#include "base/int_math.h"
#include "pattern/leaves/check_argument.h"
#include "pattern/leaves/dense.h"

namespace keyhole {
namespace {

std::string reach_text(Position reach) { return reach == kUnbounded ? "inf" : say(reach); }

// A negative reach is sound: window(1, -1) is the token before this one, without this one.
void check_reach(const char* name, Position reach) {
  KEYHOLE_CHECK(reach >= -kUnbounded && reach <= kUnbounded, "window: ", name, " is ", reach,
                "; it must lie between ", -kUnbounded, " and ", kUnbounded, " (inf)");
}

}  // namespace

std::string Window::text() const {
  if (left_ == right_) return say("window(", reach_text(left_), ")");
  return say("window(", reach_text(left_), ", ", reach_text(right_), ")");
}

bool Window::sign(const Rect& rect, Signature& signature) const {
  sign_diagonal(-left_ - 1, rect, signature);
  sign_diagonal(right_, rect, signature);
  return true;
}

NodePtr Window::in_residue(int64_t stride, int64_t) const {
  return std::make_shared<Window>(reach_in_residue(left_, stride),
                                  reach_in_residue(right_, stride));
}

Position reach_in_residue(Position reach, int64_t stride) {
  return reach == kUnbounded ? kUnbounded : floor_div(reach, stride);
}

NodePtr make_band(Position left, Position right) {
  if (left == kUnbounded && right == kUnbounded) return make_dense();
  if (left == kUnbounded && right == 0) return make_causal();
  if (-left > right) return make_nothing();
  return std::make_shared<Window>(left, right);
}

Pattern window(int64_t left, int64_t right) {
  check_reach("left", left);
  check_reach("right", right);
  // In other libraries -1 leaves a side open; here it would silently see nothing.
  KEYHOLE_CHECK(left + right >= 0, "window(", left, ", ", right,
                ") holds no key; inf leaves a side open, as in window(inf, 0)");
  return Pattern(std::make_shared<Window>(left, right));
}
Pattern window(int64_t left_and_right) { return window(left_and_right, left_and_right); }

}  // namespace keyhole
