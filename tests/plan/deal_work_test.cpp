// tests/plan/deal_work_test.cpp
// Work dealt out to the processors of a GPU: whatever the plan, every tile of every list is in one
// item, longest items first, and the chunks of a list find their places again.
#include "plan/deal_work.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/check.h"
#include "plan/lists_by_length.h"
#include "plan/plan_state.h"

namespace keyhole {
namespace {

std::vector<int32_t> groups_of(const TileView& view, int64_t heads) {
  return {view.group_of, view.group_of + heads};
}

// How many tiles each list of a group has.
std::vector<int64_t> list_lengths(const TileView& view, int32_t group, bool is_transposed) {
  const int64_t lists = int64_t{view.classes} * (is_transposed ? view.k_tiles : view.q_tiles);
  std::vector<int64_t> lengths;
  for (int64_t list = group * lists; list < (group + 1) * lists; ++list) {
    const int64_t begin = (is_transposed ? view.t_list_begin : view.list_begin)[list];
    const TileRun* runs = (is_transposed ? view.t_runs : view.runs) + begin;
    lengths.push_back(0);
    for (int32_t r = 0; r < (is_transposed ? view.t_list_count : view.list_count)[list]; ++r) {
      lengths.back() += runs[r].count;
    }
  }
  return lengths;
}

struct GroupWork {
  std::vector<WorkItem> items;                       // without the padding
  std::map<int32_t, std::vector<WorkItem>> of_list;  // by first_tile
  std::map<int32_t, SplitList> split;
};

// Takes the padding off, and checks that it is padding.
GroupWork work_of(const DealtWork& dealt, int32_t group) {
  GroupWork work;
  const WorkItem* items = dealt.items.data() + int64_t{group} * dealt.items_per_group;
  for (int32_t i = 0; i < dealt.items_per_group; ++i) {
    if (items[i].list >= 0) {
      EXPECT_EQ(work.items.size(), size_t(i)) << "padding comes last";
      work.items.push_back(items[i]);
      work.of_list[items[i].list].push_back(items[i]);
    } else {
      EXPECT_TRUE(items[i].list == -1 && items[i].num_tiles == 0 && items[i].slot == -1);
    }
  }
  for (auto& [list, chunks] : work.of_list) {
    std::sort(chunks.begin(), chunks.end(),
              [](const WorkItem& a, const WorkItem& b) { return a.first_tile < b.first_tile; });
  }
  const SplitList* splits = dealt.splits.data() + int64_t{group} * dealt.splits_per_group;
  for (int32_t i = 0; i < dealt.splits_per_group; ++i) {
    if (splits[i].num_slots == 0) continue;
    EXPECT_TRUE(work.split.emplace(splits[i].list, splits[i]).second) << "a list is split once";
  }
  return work;
}

void expect_sound(const TileView& view, const Deal& deal, const std::string& what) {
  SCOPED_TRACE(what);
  const DealtWork dealt = deal_work(view, deal);
  ASSERT_EQ(int64_t(dealt.items.size()), int64_t{view.groups} * dealt.items_per_group);
  ASSERT_EQ(int64_t(dealt.splits.size()), int64_t{view.groups} * dealt.splits_per_group);
  int32_t most_slots = 0;
  for (int32_t group = 0; group < view.groups; ++group) {
    const GroupWork work = work_of(dealt, group);
    const auto lengths = list_lengths(view, group, deal.is_transposed);
    // A head of no group has an empty list for each of these.
    ASSERT_GE(dealt.items_per_group, int64_t(lengths.size()));
    ASSERT_EQ(work.of_list.size(), lengths.size()) << "every list has an item, empty ones too";
    for (size_t i = 1; i < work.items.size(); ++i) {
      ASSERT_GE(work.items[i - 1].num_tiles, work.items[i].num_tiles) << "longest first";
    }
    std::set<int32_t> slots;
    for (const auto& [list, chunks] : work.of_list) {
      int64_t covered = 0;
      for (const WorkItem& chunk : chunks) {
        ASSERT_EQ(chunk.first_tile, covered) << "list " << list;
        covered += chunk.num_tiles;
        const int64_t index = group * int64_t(lengths.size()) + list;
        ASSERT_EQ(chunk.first_run,
                  (deal.is_transposed ? view.t_list_begin : view.list_begin)[index]);
        ASSERT_EQ(chunk.num_runs,
                  (deal.is_transposed ? view.t_list_count : view.list_count)[index]);
      }
      ASSERT_LT(size_t(list), lengths.size());
      ASSERT_EQ(covered, lengths[size_t(list)]) << "list " << list;
      if (chunks.size() == 1) {
        ASSERT_EQ(chunks[0].slot, -1) << "list " << list;
        ASSERT_EQ(work.split.count(list), 0u) << "list " << list;
        continue;
      }
      ASSERT_EQ(work.split.count(list), 1u) << "list " << list;
      const SplitList& split = work.split.at(list);
      ASSERT_EQ(split.num_slots, int32_t(chunks.size())) << "list " << list;
      for (size_t i = 0; i < chunks.size(); ++i) {  // folded in the order of the list
        ASSERT_GT(chunks[i].num_tiles, 0);
        ASSERT_EQ(chunks[i].slot, split.first_slot + int32_t(i)) << "list " << list;
        ASSERT_LT(chunks[i].slot, dealt.slots_per_group);
        ASSERT_TRUE(slots.insert(chunks[i].slot).second) << "slot " << chunks[i].slot;
      }
    }
    most_slots = std::max(most_slots, int32_t(slots.size()));
    ASSERT_TRUE(deal.may_split || work.items.size() == lengths.size());
  }
  EXPECT_EQ(dealt.slots_per_group, most_slots);
  EXPECT_TRUE(deal.may_split || dealt.splits_per_group == 0);
}

TEST(DealWork, EveryTileIsInOneItem) {
  const std::pair<const char*, Shape> cases[] = {
      {"causal", {.q_len = 3000, .k_len = 3000}},
      {"dense", {.q_len = 1, .k_len = 40000}},
      {"global(3) | window(100)", {.q_len = 3300, .k_len = 3300}},
      {"strided(64)", {.q_len = 3000, .k_len = 3000}},
      {"sinks(4) | window(9)", {.q_len = 5000, .k_len = 2000}},
      {"~dense", {.q_len = 500, .k_len = 500}},
      {"documents(3000, 7, 0, 500) & dense", {.q_len = 3507, .k_len = 3507}},
      // Lists of several lengths per group; heads that have no list in a part
      {"per_head(causal, window(3), global(2), strided(32))",
       {.batch = 2, .heads = 4, .q_len = 2500, .k_len = 2500}},
  };
  int64_t num_deals = 0;
  for (const auto& [text, shape] : cases) {
    Plan made = plan(parse(text), shape);
    for (const TileShape tile : {TileShape{64, 64}, {128, 64}, {64, 128}, {32, 32}}) {
      for (const TileView& view : made.state().view(tile, /*with_transposed=*/true).tiles) {
        const auto groups = groups_of(view, shape.batch * shape.heads);
        for (const int64_t processors : {1, 7, 132}) {
          for (const int variant : {0, 1, 2, 3}) {
            const Deal deal{.group_of = groups,
                            .num_processors = processors,
                            .is_transposed = variant % 2 != 0,
                            .may_split = variant < 2};
            expect_sound(view, deal,
                         say(text, ", tile ", to_string(tile), ", stride ", view.stride, ", ",
                             processors, " processors, variant ", variant));
            if (HasFatalFailure()) return;
            ++num_deals;
          }
        }
      }
    }
  }
  EXPECT_GE(num_deals, 400);
}

// How many pieces each list is dealt in.
std::vector<size_t> pieces(const std::vector<int32_t>& lengths, const std::vector<int32_t>& groups,
                           int64_t processors) {
  const test::ListsByLength lists(lengths);
  const Deal deal{.group_of = groups, .num_processors = processors};
  expect_sound(lists.view(), deal, "lists by their lengths");
  std::vector<size_t> counts;
  for (const auto& [list, chunks] : work_of(deal_work(lists.view(), deal), 0).of_list) {
    counts.push_back(chunks.size());
  }
  return counts;
}
std::vector<size_t> pieces(const std::vector<int32_t>& lengths, int64_t heads, int64_t processors) {
  return pieces(lengths, std::vector<int32_t>(size_t(heads), 0), processors);
}

TEST(DealWork, AListFarLongerThanTheMeanIsCut) {
  // The mean is 19.02 tiles, so that chunks have four times 20; up to half a chunk more is let be.
  std::vector<int32_t> lengths(100, 18);
  lengths[0] = 120;
  EXPECT_EQ(pieces(lengths, 1, 1), std::vector<size_t>(100, 1));
  std::vector<size_t> want(100, 1);
  want[0] = 2;
  lengths[0] = 121;
  EXPECT_EQ(pieces(lengths, 1, 1), want);
  want[0] = 3;
  lengths[0] = 200;
  EXPECT_EQ(pieces(lengths, 1, 1), want);
}

TEST(DealWork, CausalListsAreNotCutWhenThereAreEnough) {
  std::vector<int32_t> lengths;
  for (int32_t i = 1; i <= 256; ++i) lengths.push_back(i);
  EXPECT_EQ(pieces(lengths, /*heads=*/16, 132), std::vector<size_t>(256, 1));

  Plan made = plan(causal(), 16384, 16384);
  for (const bool is_transposed : {false, true}) {
    const TileView view = made.state().view({64, 64}, true).tiles[0];
    const std::vector<int32_t> groups(16, 0);
    EXPECT_EQ(
        deal_work(view, {.group_of = groups, .num_processors = 132, .is_transposed = is_transposed})
            .slots_per_group,
        0);
  }
}

TEST(DealWork, FewListsAreCutToGoRound) {
  // 264 chunks wanted; none shorter than 16 tiles, and a little over one chunk stays whole.
  EXPECT_EQ(pieces({1024}, 1, 132), std::vector<size_t>{64});
  EXPECT_EQ(pieces({16384}, 1, 132), std::vector<size_t>{261});  // 63 tiles a chunk
  EXPECT_EQ(pieces({16384}, 8, 132), std::vector<size_t>{33});   // 497
  EXPECT_EQ(pieces({24}, 1, 132), std::vector<size_t>{1});
  EXPECT_EQ(pieces({25}, 1, 132), std::vector<size_t>{2});
  EXPECT_EQ(pieces({0, 0}, 1, 132), (std::vector<size_t>{1, 1}));
}

TEST(DealWork, HeadsWithoutListsDoNotCount) {
  // Counted in, they would make the mean small and the first list an outlier.
  std::vector<int32_t> lengths(100, 18);
  lengths[0] = 120;
  EXPECT_EQ(pieces(lengths, {-1, 0, -1, -1}, 1), std::vector<size_t>(100, 1));
  EXPECT_EQ(pieces({1024}, {-1, 0, -1, -1}, 132), std::vector<size_t>{64});
}

}  // namespace
}  // namespace keyhole
