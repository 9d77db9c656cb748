// src/plan/plan.cpp
// The public face of plans: making one, asking it, checking it.
#include "keyhole/plan.h"

#include "base/int_math.h"
#include "pattern/node.h"
#include "plan/compile.h"
#include "plan/plan_state.h"

namespace keyhole {

namespace {

// Positions are sums of lengths and offsets; far below the ends of int64 none of them can wrap.
constexpr int64_t kMaxLength = int64_t{1} << 40;

void check_shape(const Shape& shape) {
  KEYHOLE_CHECK(shape.batch >= 0 && shape.heads >= 0 && shape.q_len >= 0 && shape.k_len >= 0,
                "plan: batch ", shape.batch, ", heads ", shape.heads, ", q_len ", shape.q_len,
                " and k_len ", shape.k_len, " must not be negative");
  KEYHOLE_CHECK(shape.q_len <= kMaxLength && shape.k_len <= kMaxLength, "plan: lengths ",
                shape.q_len, " and ", shape.k_len, " pass the limit of ", kMaxLength);
  KEYHOLE_CHECK(shape.q_offset() >= -kMaxLength && shape.q_offset() <= kMaxLength, "plan: offset ",
                shape.q_offset(), " is outside -", kMaxLength, " .. ", kMaxLength);
  KEYHOLE_CHECK(checked_mul(shape.batch, shape.heads, "plan: batch x heads") <= int64_t{1} << 31,
                "plan: ", shape.batch, " x ", shape.heads, " heads pass the limit of 2147483648");
}

}  // namespace

std::string to_string(const TileShape& tile) { return say(tile.q, "x", tile.k); }

Plan make_plan(const Pattern& pattern, const Shape& shape, SplitPolicy policy) {
  check_shape(shape);
  return Plan(std::make_shared<PlanState>(pattern, shape, policy));
}

Plan plan(const Pattern& pattern, const Shape& shape) {
  return make_plan(pattern, shape, SplitPolicy::by_cost);
}

Plan plan(const Pattern& pattern, int64_t q_len, int64_t k_len) {
  return plan(pattern, Shape{1, 1, q_len, k_len, {}});
}

const Shape& Plan::shape() const { return state_->shape(); }
const std::string& Plan::pattern_text() const { return state_->pattern_text(); }

void Plan::verify() const {
  for (const TileShape& tile : state_->compiled_shapes()) {
    for (const TileLists& part : state_->tiles(tile).parts) {
      keyhole::verify(part, shape(), {"of tile " + to_string(tile)});
    }
  }
  for (const KeyLists& gather : state_->gathers()) keyhole::verify(gather, shape(), {"of keys"});
}

}  // namespace keyhole
