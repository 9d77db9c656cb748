// src/plan/plan.cpp
// The public API of plans: compiling, explaining, verifying.
#include "keyhole/plan.h"

#include <cstdint>

#include "base/int_math.h"
#include "pattern/node.h"
#include "plan/compile.h"
#include "plan/plan_state.h"

namespace keyhole {

namespace {

void check_shape(const Shape& shape) {
  KEYHOLE_CHECK(shape.batch >= 0 && shape.heads >= 0 && shape.q_len >= 0 && shape.k_len >= 0,
                "plan: batch ", shape.batch, ", heads ", shape.heads, ", q_len ", shape.q_len,
                " and k_len ", shape.k_len, " must not be negative");
  KEYHOLE_CHECK(
      shape.q_len <= kMaxPlanLength && shape.k_len <= kMaxPlanLength, "plan: q_len is ",
      shape.q_len, " and k_len is ", shape.k_len, "; accepted are 0 to ", kMaxPlanLength,
      "; plan longer sequences in pieces: some of the queries at a time (set their offset), and "
      "some of the keys at a time (combine the results with merge)");
  KEYHOLE_CHECK(shape.q_offset() >= -kMaxPlanOffset && shape.q_offset() <= kMaxPlanOffset,
                "plan: offset is ", shape.q_offset(), "; accepted are -", kMaxPlanOffset, " to ",
                kMaxPlanOffset, ": choose an origin of positions nearer to the queries");
  KEYHOLE_CHECK(checked_mul(shape.batch, shape.heads, "plan: batch x heads") <= int64_t{1} << 31,
                "plan: ", shape.batch, " x ", shape.heads, " heads exceed the limit of 2147483648");
  // explain() counts the pairs of all heads. The product of two lengths always fits in int64.
  const int64_t heads = shape.batch * shape.heads, pairs = shape.q_len * shape.k_len;
  KEYHOLE_CHECK(
      heads == 0 || pairs <= INT64_MAX / heads, "plan: ", heads, " heads x ", shape.q_len,
      " queries x ", shape.k_len,
      " keys are more pairs than 64 bits can count; plan fewer heads or batch entries at a "
      "time, and pass parts of the tensors");
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
