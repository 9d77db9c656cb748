// tests/plan/level_loads_test.cpp
// Lists cut so that the CTAs of a backward pass end together: only where that helps, and so that
// every tile is still visited once (the passes verify that).
#include <gtest/gtest.h>

#include "plan/plan_state.h"
#include "plan/schedule.h"

namespace keyhole {
namespace {

constexpr TileShape kTile = {64, 128};

Target target_for(int64_t num_heads, bool may_split = true) {
  return {.layout = BitmapLayout::mma,
          .num_heads = num_heads,
          .with_transposed = true,
          .may_split_transposed = may_split,
          .num_processors = 132,
          .ctas = {.num_ctas = 132, .heads_per_section = 2, .tiles_per_item = 1}};
}

ScheduledWork schedule_of(const char* text, int64_t length, const Target& target) {
  const Plan made = plan(parse(text), length, length);
  const PlanView lists = made.state().view(kTile, /*with_transposed=*/true);
  return schedule(lists.tiles[0], 1, target).transposed;
}

double unevenness(const ScheduledWork& made) { return made.shares.longest / made.shares.mean; }

// 2,048 lists of one length: 15.5 for each of 132 CTAs.
TEST(LevelLoads, EqualListsThatDoNotDivide) {
  const ScheduledWork uncut = schedule_of("dense", 16384, target_for(16, false));
  const ScheduledWork made = schedule_of("dense", 16384, target_for(16));
  EXPECT_GT(unevenness(uncut), 1.03);
  EXPECT_LT(unevenness(made), 1.01);
  EXPECT_LT(made.shares.longest, 0.98 * uncut.shares.longest);
  EXPECT_GT(made.work.slots_per_group, 0);
  EXPECT_LE(made.work.slots_per_group * 16, 5 * 132) << "partial results cost";
}

TEST(LevelLoads, LeavesAloneWhatIsEvenOrMayNotBeSplit) {
  EXPECT_EQ(schedule_of("causal", 16384, target_for(16)).work.slots_per_group, 0);
  EXPECT_EQ(schedule_of("dense", 16384, target_for(16, false)).work.slots_per_group, 0);
  EXPECT_EQ(schedule_of("causal & window(1023)", 16384, target_for(16)).work.slots_per_group, 0);
  // Too many items for the time that trying takes.
  EXPECT_EQ(schedule_of("dense", 65536, target_for(16)).work.slots_per_group, 0);
}

}  // namespace
}  // namespace keyhole
