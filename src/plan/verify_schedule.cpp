// src/plan/verify_schedule.cpp
// The invariants of a schedule after each pass: every head has a group, no bit is lost, every tile
// of every list is in one work item, and every work item of every head belongs to one CTA.
#include <algorithm>
#include <bit>
#include <numeric>

#include "base/bits.h"
#include "base/check.h"
#include "base/int_math.h"
#include "plan/direction.h"
#include "plan/schedule.h"

namespace keyhole {
namespace {

int64_t num_bits(std::span<const uint64_t> words) {
  return std::transform_reduce(words.begin(), words.end(), int64_t{0}, std::plus<>(),
                               [](uint64_t word) { return int64_t{std::popcount(word)}; });
}

// The number of bits and the size of the arrays. (The position of each bit is tested in
// tests/plan/permute_bitmaps_test.cpp.)
void verify_mma(const TileView& lists, std::span<const uint64_t> drawn,
                const std::vector<uint64_t>& permuted, int32_t rows, int32_t cols) {
  KEYHOLE_ASSERT(int64_t(permuted.size()) == ceil_div(lists.num_bitmaps * mma_words(rows, cols), 2),
                 "permute_bitmaps: ", permuted.size(), " words for ", lists.num_bitmaps,
                 " bitmaps of ", rows, "x", cols);
  KEYHOLE_ASSERT(num_bits(permuted) == num_bits(drawn), "permute_bitmaps: ", num_bits(drawn),
                 " bits became ", num_bits(permuted));
}

// The items of one group: each list is whole in one item, or in consecutive chunks with slots of
// their own.
class GroupOfWork {
 public:
  GroupOfWork(const Direction& lists, const DealtWork& work, int32_t group)
      : lists_(lists),
        items_(work.items.data() + int64_t{group} * work.items_per_group,
               size_t(work.items_per_group)),
        splits_(work.splits.data() + int64_t{group} * work.splits_per_group,
                size_t(work.splits_per_group)),
        group_(group),
        is_dealt_(size_t(lists.lists_per_group)),
        in_slot_(size_t(work.slots_per_group)) {}

  void verify() {
    for (const WorkItem& item : items_) {
      if (item.list == -1) continue;  // padding
      require(item.list >= 0 && item.list < lists_.lists_per_group, item, "there is no such list");
      const int64_t index = group_ * lists_.lists_per_group + item.list;
      require(
          item.first_run == lists_.list_begin[index] && item.num_runs == lists_.list_count[index],
          item, "it begins elsewhere");
      if (item.slot >= 0) {
        keep_chunk(item);
      } else {
        deal(item);
        require(item.first_tile == 0 && item.num_tiles == lists_.num_tiles(index), item,
                "it is not whole");
      }
    }
    for (const SplitList& split : splits_) verify_chunks(split);
    for (const WorkItem* chunk : in_slot_) {
      if (chunk != nullptr) require(false, *chunk, "its slot belongs to no list");
    }
    const auto missing = std::ranges::find(is_dealt_, false);
    KEYHOLE_ASSERT(missing == is_dealt_.end(), "deal_work: group ", group_, " lacks list ",
                   missing - is_dealt_.begin());
  }

 private:
  void require(bool holds, const WorkItem& item, const char* what) const {
    KEYHOLE_ASSERT(holds, "deal_work: group ", group_, ", list ", item.list, ", slot ", item.slot,
                   ", tiles ", item.first_tile, " + ", item.num_tiles, ": ", what);
  }
  void deal(const WorkItem& item) {
    require(!is_dealt_[size_t(item.list)], item, "it is dealt twice");
    is_dealt_[size_t(item.list)] = true;
  }
  void keep_chunk(const WorkItem& item) {
    require(size_t(item.slot) < in_slot_.size() && in_slot_[size_t(item.slot)] == nullptr, item,
            "the slot is taken or does not exist");
    in_slot_[size_t(item.slot)] = &item;
  }
  void verify_chunks(const SplitList& split) {
    int64_t covered = 0;
    for (int32_t slot = split.first_slot; slot < split.first_slot + split.num_slots; ++slot) {
      KEYHOLE_ASSERT(
          slot >= 0 && size_t(slot) < in_slot_.size() && in_slot_[size_t(slot)] != nullptr,
          "deal_work: group ", group_, ", list ", split.list, ": no chunk in slot ", slot);
      const WorkItem& chunk = *in_slot_[size_t(slot)];
      require(chunk.list == split.list && chunk.first_tile == covered && chunk.num_tiles > 0, chunk,
              "its chunks do not follow one another");
      if (slot == split.first_slot) deal(chunk);
      covered += chunk.num_tiles;
      in_slot_[size_t(slot)] = nullptr;
    }
    if (split.num_slots == 0) return;  // padding
    KEYHOLE_ASSERT(covered == lists_.num_tiles(group_ * lists_.lists_per_group + split.list),
                   "deal_work: group ", group_, ", list ", split.list, ": its chunks have ",
                   covered, " tiles");
  }

  const Direction& lists_;
  std::span<const WorkItem> items_;
  std::span<const SplitList> splits_;
  const int32_t group_;
  std::vector<bool> is_dealt_;            // [lists_per_group]
  std::vector<const WorkItem*> in_slot_;  // [slots_per_group]; removed once their list was checked
};

void verify_direction(const TileView& view, const DealtWork& work, bool is_transposed) {
  KEYHOLE_ASSERT(int64_t(work.items.size()) == int64_t{view.groups} * work.items_per_group &&
                     int64_t(work.splits.size()) == int64_t{view.groups} * work.splits_per_group,
                 "deal_work: ", work.items.size(), " items and ", work.splits.size(),
                 " split lists of ", view.groups, " groups");
  const Direction lists(view, is_transposed);
  // A head without a group has an empty list for each of these.
  KEYHOLE_ASSERT(work.items_per_group >= lists.lists_per_group, "deal_work: room for ",
                 work.items_per_group, " items in a group of ", lists.lists_per_group, " lists");
  for (int32_t group = 0; group < view.groups; ++group) GroupOfWork(lists, work, group).verify();
}

// How many items and tiles each group gives a head; lists without rows are skipped.
struct Amount {
  int64_t items = 0, tiles = 0;
  bool operator==(const Amount&) const = default;
};
Amount amount_of_group(const Direction& lists, const DealtWork& work, int32_t group) {
  Amount amount;
  const WorkItem* items = work.items.data() + int64_t{group} * work.items_per_group;
  for (int32_t i = 0; i < work.items_per_group; ++i) {
    if (items[i].list < 0 || !lists.has_rows(items[i].list)) continue;
    ++amount.items;
    amount.tiles += items[i].num_tiles;
  }
  return amount;
}
Amount amount_without_group(const Direction& lists) {
  Amount amount;
  for (int64_t i = 0; i < lists.lists_per_group; ++i) amount.items += lists.has_rows(int32_t(i));
  return amount;
}

// Walks all items of all CTAs: each must be reached once, inside the array.
class WalkedShares {
 public:
  WalkedShares(const DealtShares& shares, const Direction& lists, const DealtWork& work,
               int64_t num_heads)
      : shares_(shares),
        lists_(lists),
        work_(work),
        amounts_(size_t(num_heads)),
        is_reached_(shares.items.size()),
        is_dealt_(size_t(num_heads * per_head())) {}

  const std::vector<Amount>& walk() {
    KEYHOLE_ASSERT(shares_.num_ctas >= 0 && size_t(shares_.num_ctas) <= shares_.items.size(),
                   "deal_shares: ", shares_.num_ctas, " CTAs, ", shares_.items.size(), " items");
    for (int32_t cta = 0; cta < shares_.num_ctas; ++cta) {
      for (int32_t at = cta; at != kLastItem; at = shares_.items[size_t(at)].next) reach(at, cta);
    }
    const auto missed = std::ranges::find(is_reached_, false);
    KEYHOLE_ASSERT(missed == is_reached_.end(), "deal_shares: no CTA reaches item ",
                   missed - is_reached_.begin());
    return amounts_;
  }

 private:
  int64_t per_head() const { return lists_.lists_per_group + work_.slots_per_group; }

  void reach(int32_t at, int32_t cta) {
    KEYHOLE_ASSERT(at >= 0 && size_t(at) < shares_.items.size() && !is_reached_[size_t(at)],
                   "deal_shares: CTA ", cta, " goes on with item ", at, " of ",
                   shares_.items.size(), ", which does not exist or was visited before");
    is_reached_[size_t(at)] = true;
    const WorkItem& item = shares_.items[size_t(at)].work;
    KEYHOLE_ASSERT(item.head >= 0 && size_t(item.head) < amounts_.size() && item.list >= 0 &&
                       item.list < lists_.lists_per_group && item.slot >= -1 &&
                       item.slot < work_.slots_per_group && lists_.has_rows(item.list),
                   "deal_shares: item ", at, " is list ", item.list, ", slot ", item.slot,
                   " of head ", item.head);
    // A whole list is identified by its number, a chunk by its slot.
    const int64_t place = item.slot < 0 ? item.list : lists_.lists_per_group + item.slot;
    const size_t index = size_t(item.head * per_head() + place);
    KEYHOLE_ASSERT(!is_dealt_[index], "deal_shares: list ", item.list, ", slot ", item.slot,
                   " of head ", item.head, " is dealt twice");
    is_dealt_[index] = true;
    Amount& amount = amounts_[size_t(item.head)];
    ++amount.items;
    amount.tiles += item.num_tiles;
  }

  const DealtShares& shares_;
  const Direction& lists_;
  const DealtWork& work_;
  std::vector<Amount> amounts_;   // [heads] what CTAs process of each
  std::vector<bool> is_reached_;  // [shares.items]
  std::vector<bool> is_dealt_;    // [heads][lists, then slots]
};

}  // namespace

void verify_groups(const ScheduleDraft& draft) {
  const std::vector<int32_t>& group_of = draft.made.group_of;
  KEYHOLE_ASSERT(int64_t(group_of.size()) == draft.target.num_heads,
                 "repeat_groups: ", group_of.size(), " heads of ", draft.target.num_heads);
  for (const int32_t group : group_of) {
    KEYHOLE_ASSERT(group >= -1 && group < draft.lists.groups, "repeat_groups: group ", group,
                   " of ", draft.lists.groups);
    KEYHOLE_ASSERT(group == 0 || !draft.made.is_one_group,
                   "repeat_groups: one group, but a head of group ", group);
  }
}

void verify_bitmaps(const ScheduleDraft& draft) {
  const TileView& lists = draft.lists;
  const ScheduledTiles& made = draft.made;
  const int64_t words = lists.num_bitmaps * lists.tile.q * words_per_row(lists.tile.k);
  const std::span<const uint64_t> drawn(lists.bitmaps, size_t(words));
  if (draft.target.layout == BitmapLayout::row_major) {
    KEYHOLE_ASSERT(std::ranges::equal(made.bitmaps, drawn) && made.t_bitmaps.empty(),
                   "permute_bitmaps: row_major bitmaps changed");
    return;
  }
  verify_mma(lists, drawn, made.bitmaps, lists.tile.q, lists.tile.k);
  if (draft.target.with_transposed) {
    verify_mma(lists, drawn, made.t_bitmaps, lists.tile.k, lists.tile.q);
  }
}

void verify_work(const ScheduleDraft& draft) {
  verify_direction(draft.lists, draft.made.forward.work, /*is_transposed=*/false);
  if (draft.target.with_transposed) {
    verify_direction(draft.lists, draft.made.transposed.work, /*is_transposed=*/true);
  }
}

void verify_shares(const ScheduleDraft& draft) {
  const Target& target = draft.target;
  const ScheduledTiles& made = draft.made;
  const auto& [work, shares] = target.with_transposed ? made.transposed : made.forward;
  const ScheduledWork& other = target.with_transposed ? made.forward : made.transposed;
  KEYHOLE_ASSERT(shares.num_ctas <= target.ctas.num_ctas && other.shares.items.empty(),
                 "deal_shares: ", shares.num_ctas, " of ", target.ctas.num_ctas, " CTAs");
  if (target.ctas.num_ctas == 0) return;
  const Direction lists(draft.lists, target.with_transposed);
  std::vector<Amount> of_group;
  for (int32_t g = 0; g < draft.lists.groups; ++g) {
    of_group.push_back(amount_of_group(lists, work, g));
  }
  const Amount without = amount_without_group(lists);
  WalkedShares walked(shares, lists, work, target.num_heads);
  const std::vector<Amount>& got = walked.walk();
  for (size_t head = 0; head < got.size(); ++head) {
    const int32_t group = made.group_of[head];
    const Amount& want = group < 0 ? without : of_group[size_t(group)];
    KEYHOLE_ASSERT(got[head] == want, "deal_shares: head ", head, " has ", got[head].items,
                   " items of ", got[head].tiles, " tiles, its group ", want.items, " of ",
                   want.tiles);
  }
}

}  // namespace keyhole
