// tests/support/check_plan.cpp
// Draws small shapes, because nearly every planner bug shows within two tiles.
#include "support/check_plan.h"

#include "base/check.h"
#include "plan/plan_state.h"
#include "support/generator.h"
#include "support/plan_compare.h"

namespace keyhole::test {
namespace {

constexpr TileShape kPlanTiles[] = {{1, 1}, {4, 4}, {3, 5}, {8, 16}, {16, 8}, {16, 64}, {64, 65}};

}  // namespace

std::span<const TileShape> plan_tiles() { return kPlanTiles; }

Case draw_plan_case(uint64_t seed) {
  Random random(seed);
  Case c;
  c.tile = -1;
  c.batch = random.chance(85) ? 1 : 2;
  c.heads = random.chance(80) ? 1 : random.between(2, 3);
  const int64_t longest = random.chance(90) ? 24 : 90;
  c.q_len = random.chance(70) ? random.between(0, longest)
                              : std::min(draw_integer(random, longest), longest);
  c.k_len = random.chance(30) ? c.q_len : random.between(0, longest);
  if (random.chance(15)) c.offset = random.between(-longest, longest);
  c.pattern = draw_pattern(random, c.shape());
  c.forms = int(random.between(0, 4));
  return c;
}

Failure check_plan(const Case& c, int64_t* combinations, int64_t* pairs) {
  try {
    const Pattern pattern = build(c.pattern, c.shape());
    const AllowedPairs allowed(pattern, c.shape());
    const Plan made = make_plan(pattern, c.shape(), c.policy());
    for (size_t i = 0; i < std::size(kPlanTiles); ++i) {
      if (c.tile >= 0 && size_t(c.tile) % std::size(kPlanTiles) != i) continue;
      const std::string text = compare_plan_with_pairs(made, allowed, kPlanTiles[i]);
      if (!text.empty()) return {"plan", say(pattern.text(), ": ", text)};
      if (combinations) ++*combinations;
      if (pairs) *pairs += c.batch * c.heads * c.q_len * c.k_len;
    }
    return {};
  } catch (const Error& error) {
    return {say("error ", to_string(error.kind())), error.what()};
  } catch (const std::exception& error) {
    return {"exception", error.what()};
  }
}

}  // namespace keyhole::test
