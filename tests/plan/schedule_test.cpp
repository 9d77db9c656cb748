// tests/plan/schedule_test.cpp
// The passes that make a plan ready for a GPU and a call: whatever the plan and the target, what
// they leave behind is verified, and what a broken pass might leave is refused.
#include "plan/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "base/check.h"
#include "plan/plan_state.h"

namespace keyhole {
namespace {

constexpr TileShape kTile = {64, 64};

// A plan for as many heads as it names patterns, and one for any number of them.
const std::pair<const char*, Shape> kCases[] = {
    {"causal", {.q_len = 3000, .k_len = 3000}},
    {"global(3) | window(100)", {.q_len = 3300, .k_len = 3300}},
    {"causal & dilated(7)", {.q_len = 1000, .k_len = 1003}},
    {"dilated(7)", {.q_len = 1003, .k_len = 5}},
    {"~dense", {.q_len = 500, .k_len = 500}},
    {"per_head(causal, window(3), global(2), strided(32))",
     {.batch = 2, .heads = 4, .q_len = 2500, .k_len = 2500}},
};

std::vector<Target> targets_of(const Shape& shape) {
  const int64_t planned = shape.batch * shape.heads;
  std::vector<Target> targets;
  for (const bool with_transposed : {false, true}) {
    for (const BitmapLayout layout : {BitmapLayout::row_major, BitmapLayout::mma}) {
      for (const int32_t num_ctas : {0, 7, 132}) {
        targets.push_back({.layout = layout,
                           .num_heads = planned == 1 ? 6 : planned,
                           .with_transposed = with_transposed,
                           .may_split_transposed = num_ctas != 7,
                           .num_processors = 132,
                           .ctas = {num_ctas, 4, 2, 1.7}});
      }
    }
  }
  return targets;
}

TEST(Schedule, IsWhatItsPassesMakeOneByOne) {
  int64_t num_schedules = 0, num_without = 0;
  for (const auto& [text, shape] : kCases) {
    const Plan made = make_plan(parse(text), shape, SplitPolicy::residues);
    const int64_t planned = shape.batch * shape.heads;
    for (const TileView& view : made.state().view(kTile, true).tiles) {
      for (const Target& target : targets_of(shape)) {
        const ScheduledTiles got = schedule(view, planned, target);  // verified
        const std::vector<int32_t> planned_of(view.group_of, view.group_of + planned);
        ASSERT_EQ(got.group_of, groups_of_heads(planned_of, target.num_heads));
        num_without += std::ranges::count(got.group_of, -1);
        const DealtWork work =
            deal_work(view, {.group_of = got.group_of, .num_processors = target.num_processors});
        EXPECT_EQ(got.forward.work.items.size(), work.items.size()) << text;
        EXPECT_EQ(got.transposed.work.items.empty(), !target.with_transposed || view.groups == 0);
        // CTAs that stay follow one direction.
        const bool has_ctas = target.ctas.num_ctas > 0;
        EXPECT_EQ(got.forward.shares.num_ctas > 0, has_ctas && !target.with_transposed) << text;
        EXPECT_EQ(got.transposed.shares.num_ctas > 0, has_ctas && target.with_transposed) << text;
        EXPECT_TRUE(target.may_split_transposed || got.transposed.work.slots_per_group == 0);
        ++num_schedules;
      }
    }
  }
  EXPECT_GE(num_schedules, 72);
  EXPECT_GE(num_without, 12);  // heads that have no list in a part
}

TEST(Schedule, GroupsAreRepeatedOnlyFromOneHead) {
  const std::vector<int32_t> one = {0}, three = {2, -1, 0};
  EXPECT_EQ(groups_of_heads(one, 4), std::vector<int32_t>(4, 0));
  EXPECT_EQ(groups_of_heads(one, 0), std::vector<int32_t>());
  EXPECT_EQ(groups_of_heads(three, 3), three);
  EXPECT_THROW(groups_of_heads(three, 6), Error);
}

TEST(Schedule, TargetsAreKeys) {
  std::set<Target> targets;
  for (const Target& target : targets_of(kCases[0].second)) targets.insert(target);
  EXPECT_EQ(targets.size(), 12u);
  Target other = *targets.begin();
  EXPECT_TRUE(targets.contains(other));
  other.ctas.tiles_per_item += 0.1;
  EXPECT_FALSE(targets.contains(other));
}

// What a pass made, broken afterwards, is refused by the verifier of that pass.
struct Breakage {
  const char* what;
  void (*verify)(const ScheduleDraft&);
  std::function<void(ScheduledTiles&)> breaks;
};

TEST(Schedule, BrokenOnesAreRefused) {
  // Split lists, so that there are chunks to break.
  const Plan made = make_plan(parse("global(3) | window(100)"), {.q_len = 3300, .k_len = 3300},
                              SplitPolicy::residues);
  const TileView view = made.state().view(kTile, true).tiles[0];
  const Target target{
      .layout = BitmapLayout::mma, .num_heads = 4, .num_processors = 132, .ctas = {7, 4, 1, 1.7}};
  const ScheduledTiles sound = schedule(view, 1, target);
  ASSERT_GT(sound.forward.work.slots_per_group, 2);
  const auto chunk = [](ScheduledTiles& tiles) -> WorkItem& {
    return *std::ranges::find_if(tiles.forward.work.items,
                                 [](const WorkItem& item) { return item.slot > 0; });
  };
  const auto whole = [](ScheduledTiles& tiles) -> WorkItem& {
    return *std::ranges::find_if(tiles.forward.work.items,
                                 [](const WorkItem& item) { return item.slot < 0; });
  };
  const auto items = [](ScheduledTiles& tiles) -> std::vector<ShareItem>& {
    return tiles.forward.shares.items;
  };
  const Breakage breakages[] = {
      {"a head too few", verify_groups, [](auto& t) { t.group_of.pop_back(); }},
      {"an unknown group", verify_groups, [](auto& t) { t.group_of[1] = 1; }},
      {"several groups", verify_groups, [](auto& t) { t.group_of[1] = -1; }},
      {"a lost bit", verify_bitmaps, [](auto& t) { t.bitmaps[0] &= t.bitmaps[0] - 1; }},
      {"a lost word", verify_bitmaps, [](auto& t) { t.bitmaps.pop_back(); }},
      {"a list twice", verify_work, [&](auto& t) { (&whole(t))[1] = whole(t); }},
      {"a list left out", verify_work, [&](auto& t) { whole(t).list = -1; }},
      {"a list not whole", verify_work, [&](auto& t) { whole(t).num_tiles -= 1; }},
      {"other runs", verify_work, [&](auto& t) { whole(t).first_run += 1; }},
      {"no such list", verify_work, [&](auto& t) { whole(t).list = 1000; }},
      {"chunks with a gap", verify_work, [&](auto& t) { chunk(t).first_tile += 1; }},
      {"chunks too short", verify_work, [&](auto& t) { chunk(t).num_tiles -= 1; }},
      {"a slot twice", verify_work, [&](auto& t) { chunk(t).slot -= 1; }},
      {"a split list less", verify_work, [](auto& t) { t.forward.work.splits[0].num_slots = 0; }},
      {"a split list too long", verify_work,
       [](auto& t) { t.forward.work.splits.back().num_slots += 1; }},
      {"an item lost", verify_work, [](auto& t) { t.forward.work.items.pop_back(); }},
      {"an item twice", verify_shares, [&](auto& t) { items(t)[8].work = items(t)[9].work; }},
      {"an item of no head", verify_shares, [&](auto& t) { items(t)[0].work.head = 4; }},
      {"an item never reached", verify_shares, [&](auto& t) { items(t)[0].next = kLastItem; }},
      {"a circle", verify_shares, [&](auto& t) { items(t)[items(t)[0].next].next = 0; }},
      {"an item out of reach", verify_shares, [&](auto& t) { items(t)[0].next = 100000; }},
      {"other tiles", verify_shares, [&](auto& t) { items(t)[3].work.num_tiles += 1; }},
      {"too many CTAs", verify_shares, [](auto& t) { t.forward.shares.num_ctas = 8; }},
  };
  const std::span<const int32_t> planned_of(view.group_of, 1);
  for (const Breakage& breakage : breakages) {
    ScheduleDraft draft{view, planned_of, target, sound};
    ASSERT_NO_THROW(breakage.verify(draft)) << breakage.what;
    breakage.breaks(draft.made);
    try {
      breakage.verify(draft);
      ADD_FAILURE() << breakage.what << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::internal) << error.what();
    }
  }
}

}  // namespace
}  // namespace keyhole
