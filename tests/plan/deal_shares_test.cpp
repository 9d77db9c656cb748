// tests/plan/deal_shares_test.cpp
// Work dealt out to CTAs that stay: whatever the plan, every item of every head is in one share,
// sections follow one another, and no CTA has much more to do than another.
#include "plan/deal_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/check.h"
#include "plan/lists_by_length.h"
#include "plan/plan_state.h"

namespace keyhole {
namespace {

constexpr double kTilesPerItem = 1.5;

struct Dealt {
  DealtWork work;
  DealtShares shares;
};

// The lists that are dealt out: those of query tiles, or those of key tiles.
struct Side {
  bool is_transposed;
  const TileRun* runs;
  int32_t tiles, tile_rows;

  Side(const TileView& view, bool by_keys)
      : is_transposed(by_keys),
        runs(by_keys ? view.t_runs : view.runs),
        tiles(by_keys ? view.k_tiles : view.q_tiles),
        tile_rows(by_keys ? view.tile.k : view.tile.q) {}
  int64_t rows_of(const ResidueClass& residue) const {
    return is_transposed ? residue.num_k : residue.num_q;
  }
};

Dealt deal_to(const TileView& view, const std::vector<int32_t>& groups, int32_t num_ctas,
              int32_t heads_per_section, int32_t heads_per_kv_head = 1, bool is_transposed = false,
              double tiles_per_item = kTilesPerItem) {
  Dealt dealt{
      deal_work(view,
                {.group_of = groups, .num_processors = num_ctas, .is_transposed = is_transposed}),
      {}};
  dealt.shares = deal_shares(view, dealt.work,
                             {.group_of = groups,
                              .is_transposed = is_transposed,
                              .num_ctas = num_ctas,
                              .heads_per_section = heads_per_section,
                              .heads_per_kv_head = heads_per_kv_head,
                              .tiles_per_item = tiles_per_item});
  return dealt;
}

// The items of each CTA, as it goes from one to the next.
std::vector<std::vector<WorkItem>> by_cta(const DealtShares& shares) {
  std::vector<std::vector<WorkItem>> ctas;
  for (int32_t cta = 0; cta < shares.num_ctas; ++cta) {
    ctas.emplace_back();
    for (int32_t at = cta; at != kLastItem; at = shares.items.at(size_t(at)).next) {
      ctas.back().push_back(shares.items.at(size_t(at)).work);
      if (ctas.back().size() > shares.items.size()) ADD_FAILURE() << "CTA " << cta << " never ends";
      if (testing::Test::HasFailure()) return ctas;
    }
  }
  return ctas;
}

// The load of each CTA, in tiles.
std::vector<double> loads_of(const DealtShares& shares) {
  std::vector<double> loads;
  for (const std::vector<WorkItem>& share : by_cta(shares)) {
    loads.push_back(0);
    for (const WorkItem& item : share) loads.back() += item.num_tiles + kTilesPerItem;
  }
  return loads;
}

// The largest load of 132 CTAs, of the mean.
double unevenness(const DealtShares& shares) {
  const std::vector<double> loads = loads_of(shares);
  double total = 0;
  for (const double load : loads) total += load;
  return *std::ranges::max_element(loads) * 132 / total;
}

// (tile, bitmap) of every tile of an item: what a kernel will visit.
std::vector<std::pair<int32_t, int32_t>> tiles_of(const Side& side, const WorkItem& item) {
  std::vector<std::pair<int32_t, int32_t>> tiles;
  int32_t skip = item.first_tile;
  for (int32_t r = 0; r < item.num_runs && int32_t(tiles.size()) < item.num_tiles; ++r) {
    const TileRun& run = side.runs[item.first_run + r];
    for (int32_t i = 0; i < run.count && int32_t(tiles.size()) < item.num_tiles; ++i) {
      if (skip-- > 0) continue;
      tiles.emplace_back(run.tile + i, run.bitmap);
    }
  }
  return tiles;
}

// Inside a share: section after section, the longest first, or list after list from either end; but
// the shortest of all, about one for each CTA, come last.
void expect_in_order(const DealtShares& shares, int64_t kv_heads, int32_t heads_per_section,
                     int32_t heads_per_kv_head) {
  const int64_t per_section = heads_per_section / heads_per_kv_head;
  const int64_t sections = (kv_heads + per_section - 1) / per_section;
  std::vector<int64_t> section_of;  // [kv heads]
  for (int64_t s = 0; s < sections; ++s) {
    section_of.resize(size_t(kv_heads * (s + 1) / sections), s);  // as equal as they can be
  }
  std::vector<int32_t> lengths;
  for (const ShareItem& item : shares.items) lengths.push_back(item.work.num_tiles);
  std::ranges::sort(lengths);
  const int32_t longest_of_short = lengths[size_t(shares.num_ctas) - 1];
  bool longest_first = true, first_first = true, last_first = true, has_gone_back = false;
  for (const std::vector<WorkItem>& share : by_cta(shares)) {
    for (size_t i = 1; i < share.size(); ++i) {
      const WorkItem &before = share[i - 1], &item = share[i];
      const int64_t old_section = section_of[size_t(before.head / heads_per_kv_head)];
      const int64_t section = section_of[size_t(item.head / heads_per_kv_head)];
      if (old_section > section) {
        ASSERT_LT(item.num_tiles, lengths.back());
        ASSERT_LE(item.num_tiles, longest_of_short);
        ASSERT_GE(before.num_tiles, item.num_tiles);
        has_gone_back = true;
      }
      if (old_section != section) continue;
      longest_first &= before.num_tiles >= item.num_tiles;
      first_first &= before.list <= item.list;
      last_first &= before.list >= item.list;
    }
  }
  EXPECT_TRUE(longest_first || (!has_gone_back && (first_first || last_first)));
}

void expect_sound(const TileView& view, const Side& side, const std::vector<int32_t>& groups,
                  int32_t num_ctas, int32_t heads_per_section, int32_t heads_per_kv_head) {
  const auto [work, shares] =
      deal_to(view, groups, num_ctas, heads_per_section, heads_per_kv_head, side.is_transposed);
  // What must be there: by head, list and slot.
  std::map<std::tuple<int32_t, int32_t, int32_t>, WorkItem> wanted;
  for (int32_t head = 0; head < int32_t(groups.size()); ++head) {
    const int32_t group = groups[size_t(head)];
    for (int32_t place = 0; place < work.items_per_group; ++place) {
      WorkItem item{place < view.classes * side.tiles ? place : -1, 0, 0, -1};
      if (group >= 0) item = work.items[size_t(group * work.items_per_group + place)];
      if (item.list < 0) continue;
      const int64_t rows = side.rows_of(view.residues[item.list / side.tiles]);
      if (int64_t{item.list % side.tiles} * side.tile_rows >= rows) continue;
      wanted[{head, item.list, item.slot}] = item;
    }
  }
  ASSERT_EQ(shares.items.size(), wanted.size());
  // No CTA is launched for nothing.
  ASSERT_EQ(size_t(shares.num_ctas), std::min(size_t(num_ctas), wanted.size()));
  for (const ShareItem& item : shares.items) {
    const auto tiles = tiles_of(side, item.work);
    ASSERT_EQ(item.first.count > 0, !tiles.empty());
    if (!tiles.empty()) {
      ASSERT_EQ(std::pair(item.first.tile, item.first.bitmap), tiles[0]);
    }
    for (int32_t i = 0; i < std::min(item.first.count, item.work.num_tiles); ++i) {
      ASSERT_EQ(item.first.tile + i, tiles[size_t(i)].first);
    }
  }
  for (const std::vector<WorkItem>& share : by_cta(shares)) {
    for (const WorkItem& item : share) {
      const auto found = wanted.find({item.head, item.list, item.slot});
      ASSERT_NE(found, wanted.end()) << "head " << item.head << ", list " << item.list;
      ASSERT_EQ(item.num_tiles, found->second.num_tiles);
      ASSERT_EQ(tiles_of(side, item), tiles_of(side, found->second));
      ASSERT_EQ(int32_t(tiles_of(side, item).size()), item.num_tiles);
      // The run it begins in, and no run before it.
      ASSERT_TRUE(item.num_tiles == 0 || item.first_tile < side.runs[item.first_run].count);
      wanted.erase(found);  // each once
    }
  }
  EXPECT_TRUE(wanted.empty());
  expect_in_order(shares, int64_t(groups.size()) / heads_per_kv_head, heads_per_section,
                  heads_per_kv_head);
}

TEST(DealShares, EveryItemOfEveryHeadIsInOneShare) {
  const std::pair<const char*, Shape> cases[] = {
      {"causal", {.batch = 2, .heads = 4, .q_len = 3000, .k_len = 3000}},
      {"dense", {.q_len = 1, .k_len = 40000}},
      // Chunks that begin in the middle of a list of many runs
      {"global(3) | window(100)", {.heads = 8, .q_len = 3300, .k_len = 3300}},
      {"causal & dilated(7)", {.heads = 4, .q_len = 1000, .k_len = 1003}},
      {"causal & dilated(7)", {.heads = 4, .q_len = 5, .k_len = 1003}},  // classes without a query
      {"dilated(7)", {.heads = 4, .q_len = 1003, .k_len = 5}},           // and without a key
      {"~dense", {.q_len = 500, .k_len = 500}},
      {"per_head(causal, window(3), global(2), strided(32))",
       {.batch = 2, .heads = 4, .q_len = 2500, .k_len = 2500}},
  };
  int64_t num_deals = 0, num_split = 0, num_residues = 0, num_without = 0, num_empty = 0;
  for (const auto& [text, shape] : cases) {
    Plan made = make_plan(parse(text), shape, SplitPolicy::residues);
    const int64_t heads = shape.batch * shape.heads;
    for (const TileShape tile : {TileShape{64, 64}, {128, 128}, {128, 64}}) {
      for (const TileView& view : made.state().view(tile, true).tiles) {
        const std::vector<int32_t> groups(view.group_of, view.group_of + heads);
        num_residues += view.stride > 1;
        for (int32_t c = 0; c < view.classes; ++c) num_empty += view.residues[c].num_q == 0;
        num_without += std::ranges::count(groups, -1);
        for (const Side& side : {Side(view, false), Side(view, true)}) {
          for (const int32_t ctas : {1, 7, 132, 100000}) {
            for (const int32_t per_kv_head : {1, 2}) {
              if (heads % per_kv_head != 0) continue;
              for (const int32_t per_section : {per_kv_head, 3 * per_kv_head, 1000 * per_kv_head}) {
                SCOPED_TRACE(say(text, side.is_transposed ? " by key" : "", ", tile ",
                                 to_string(tile), ", stride ", view.stride, ", ", ctas, " CTAs, ",
                                 per_section, " / ", per_kv_head, " heads"));
                expect_sound(view, side, groups, ctas, per_section, per_kv_head);
                if (HasFatalFailure()) return;
                num_split += deal_work(view, {.group_of = groups,
                                              .num_processors = ctas,
                                              .is_transposed = side.is_transposed})
                                 .slots_per_group > 0;
                ++num_deals;
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GE(num_deals, 600);
  EXPECT_GE(num_split, 100);
  EXPECT_GE(num_residues, 6);
  EXPECT_GE(num_without, 6);
  EXPECT_GE(num_empty, 6);
}

DealtShares deal_lengths(const std::vector<int32_t>& lengths, int32_t heads, int32_t ctas,
                         int32_t per_section, int32_t per_kv_head = 1) {
  const test::ListsByLength lists(lengths);
  const std::vector<int32_t> groups(size_t(heads), 0);
  return deal_to(lists.view(), groups, ctas, per_section, per_kv_head).shares;
}

std::vector<int32_t> causal_lengths(int32_t tiles) {
  std::vector<int32_t> lengths;
  for (int32_t i = 1; i <= tiles; ++i) lengths.push_back(i);
  return lengths;
}

TEST(DealShares, TheExampleOfTheHeader) {
  const DealtShares shares = deal_lengths({5, 3, 2, 4, 3}, 1, 2, 1);
  std::vector<std::vector<int32_t>> got;
  for (const std::vector<WorkItem>& share : by_cta(shares)) {
    got.emplace_back();
    for (const WorkItem& item : share) got.back().push_back(item.num_tiles);
  }
  EXPECT_EQ(got, (std::vector<std::vector<int32_t>>{{5, 3}, {4, 3, 2}}));
}

TEST(DealShares, LoadsAreEven) {
  struct Case {
    int32_t tiles, heads, per_section;
    double most;  // the largest load, of the mean
  };
  // Causal attention of 128x128 tiles on 132 CTAs; sections as an H200's cache asks for them.
  const Case cases[] = {
      {128, 16, 1, 1.01},                      // 1 x 16 heads x 16,384
      {32, 64, 7, 1.02},                       // 4 x 16 x 4,096
      {512, 16, 1, 1.005},                     // 1 x 16 x 65,536
      {1024, 16, 1, 1.005}, {128, 1, 1, 1.3},  // one head: two or three chunks a CTA
  };
  for (const Case& c : cases) {
    EXPECT_LE(unevenness(deal_lengths(causal_lengths(c.tiles), c.heads, 132, c.per_section)),
              c.most)
        << c.tiles << " lists of " << c.heads << " heads in sections of " << c.per_section;
  }
}

// Empty lists that cost nothing: every CTA has an item all the same.
TEST(DealShares, ItemsThatCostNothing) {
  const test::ListsByLength lists({0, 0, 0, 0, 0});
  const std::vector<int32_t> groups(4, 0);
  const DealtShares shares = deal_to(lists.view(), groups, 7, 4, 1, false, 0).shares;
  ASSERT_EQ(shares.items.size(), 20u);
  ASSERT_EQ(shares.num_ctas, 7);
  size_t num_items = 0;
  for (const std::vector<WorkItem>& share : by_cta(shares)) num_items += share.size();
  EXPECT_EQ(num_items, 20u);
}

// Causal windows of 1,024 tokens: nearly all lists are equal, and the few short ones are what can
// even out the CTAs that have one list more.
TEST(DealShares, TheShortestItemsOfAllSectionsComeLast) {
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < 128; ++i) lengths.push_back(std::min(i + 1, 9));
  for (const int32_t per_section : {1, 2, 4, 16}) {
    EXPECT_LE(unevenness(deal_lengths(lengths, 16, 132, per_section)), 1.015) << per_section;
  }
}

// Blocks of 1,024 tokens along the diagonal, 131,072 tokens: 1 ... 8 tiles, again and again. Taken
// longest first, the lists of a block would be followed at eight different times.
TEST(DealShares, NeighboursStayTogetherWhereTheLongestMattersLittle) {
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < 1024; ++i) lengths.push_back(1 + i % 8);
  const DealtShares shares = deal_lengths(lengths, 16, 132, 1);
  for (const std::vector<WorkItem>& share : by_cta(shares)) {
    for (size_t i = 1; i < share.size(); ++i) {
      const WorkItem &before = share[i - 1], &item = share[i];
      if (item.head != before.head) continue;
      // All CTAs are at neighbouring lists: each goes on about as many lists later.
      ASSERT_LE(std::abs(item.list - before.list), 300) << "item " << i;
    }
  }
  const auto loads = loads_of(shares);
  EXPECT_LE(*std::ranges::max_element(loads), 1.02 * *std::ranges::min_element(loads));
  // The end with the longer lists comes first.
  EXPECT_GT(deal_lengths(causal_lengths(100), 64, 2, 1).items[0].work.list, 90);
}

TEST(DealShares, SectionsFollowOneAnotherAndAreEqual) {
  // 16 heads, at most 3 together: six sections of 2 or 3, not five of 3 and one of 1.
  expect_in_order(deal_lengths(causal_lengths(40), 16, 12, 3), 16, 3, 1);
  // 6 kv heads of 4 query heads, which stay together.
  expect_in_order(deal_lengths(causal_lengths(30), 24, 5, 8, 4), 6, 8, 4);
}

TEST(DealShares, EqualItemsGoRoundInTheOrderOfHeads) {
  const DealtShares shares = deal_lengths({2, 2, 2, 2}, 3, 4, 3);
  std::vector<std::pair<int32_t, int32_t>> got;  // (head, list) of CTA after CTA
  for (const std::vector<WorkItem>& share : by_cta(shares)) {
    for (const WorkItem& item : share) got.emplace_back(item.head, item.list);
  }
  const std::vector<std::pair<int32_t, int32_t>> want = {{0, 0}, {1, 1}, {2, 2}, {1, 0},
                                                         {2, 1}, {0, 3}, {2, 0}, {0, 2},
                                                         {1, 3}, {0, 1}, {1, 2}, {2, 3}};
  EXPECT_EQ(got, want);
}

std::tuple<int32_t, int32_t, int32_t> place_of(const ShareItem& item) {
  return {item.work.list, item.work.head, item.work.slot};
}

// A CTA that draws an item may wait for others of the same head whose keys come before, and for
// heads before its own at the same keys. All of these must have been drawn.
void expect_no_wait_for_later_items(const DealtShares& shares) {
  std::map<int32_t, std::pair<int32_t, int32_t>> last_of_head;  // (list, slot)
  std::map<int32_t, int32_t> last_of_list;                      // head
  for (const ShareItem& item : shares.items) {
    const std::pair place(item.work.list, item.work.slot);
    const auto of_head = last_of_head.find(item.work.head);
    ASSERT_TRUE(of_head == last_of_head.end() || of_head->second < place);
    last_of_head[item.work.head] = place;
    const auto of_list = last_of_list.find(item.work.list);
    ASSERT_TRUE(of_list == last_of_list.end() || of_list->second <= item.work.head);
    last_of_list[item.work.list] = item.work.head;
  }
  EXPECT_FALSE(shares.items.empty());
}

TEST(DealShares, ItemsThatAreDrawnWaitForEarlierOnesOnly) {
  for (const char* text : {"causal", "per_head(causal, window(3), global(2), strided(32))",
                           "per_head(window(3), dense, ~dense, causal)", "~dense"}) {
    Plan made = make_plan(parse(text), {2, 4, 2500, 2500}, SplitPolicy::residues);
    for (const TileShape tile : {TileShape{64, 128}, TileShape{64, 64}}) {
      for (const TileView& view : made.state().view(tile, true).tiles) {
        const std::vector<int32_t> groups(view.group_of, view.group_of + 8);
        for (const int32_t per_section : {1, 3, 16}) {
          SCOPED_TRACE(say(text, ", tiles ", to_string(tile), ", ", per_section, " heads"));
          const DealtWork work =
              deal_work(view, {.group_of = groups, .num_processors = 132, .is_transposed = true});
          ShareDeal deal{.group_of = groups,
                         .is_transposed = true,
                         .num_ctas = 132,
                         .heads_per_section = per_section,
                         .tiles_per_item = kTilesPerItem,
                         .in_list_order = true};
          const DealtShares shares = deal_shares(view, work, deal);
          expect_no_wait_for_later_items(shares);
          if (HasFatalFailure()) return;
          // The same items, in the same order, for any number of CTAs.
          for (const int32_t ctas : {1, 7}) {
            deal.num_ctas = ctas;
            EXPECT_TRUE(std::ranges::equal(deal_shares(view, work, deal).items, shares.items, {},
                                           place_of, place_of));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace keyhole
