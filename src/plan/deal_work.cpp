// src/plan/deal_work.cpp
#include "plan/deal_work.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/int_math.h"
#include "plan/direction.h"
#include "plan/schedule.h"

namespace keyhole {
namespace {

// A chunk is this many times as long as the mean list, and only lists longer than one and a half
// chunks are split. Causal attention, whose longest list is twice the mean, is not split.
constexpr int64_t kOutlier = 4;
// Chunks per SM when there are fewer lists than SMs can use.
constexpr int64_t kChunksPerProcessor = 2;

// Longer than any list; one and a half times this still fits in int64.
constexpr int64_t kUncut = int64_t{1} << 60;

int64_t chunk_tiles(const TileView& view, const Direction& lists, const Deal& deal) {
  std::vector<int64_t> of_group(size_t(view.groups), 0);
  for (int64_t list = 0; list < view.groups * lists.lists_per_group; ++list) {
    of_group[size_t(list / lists.lists_per_group)] += lists.num_tiles(list);
  }
  int64_t total = 0, num_lists = 0;
  for (const int32_t group : deal.group_of) {
    if (group < 0) continue;
    total += of_group[size_t(group)];
    num_lists += lists.lists_per_group;
  }
  const int64_t outlier = kOutlier * ceil_div(total, std::max<int64_t>(1, num_lists));
  const int64_t fair = ceil_div(total, kChunksPerProcessor * deal.num_processors);
  return std::max(kShortestChunk, std::min(outlier, fair));
}

// The numbers of the longest lists of a group; of equal ones the last.
std::vector<bool> longest_lists(const Direction& lists, int64_t first, int64_t count) {
  std::vector<int64_t> places(static_cast<size_t>(lists.lists_per_group));
  std::iota(places.begin(), places.end(), int64_t{0});
  std::ranges::sort(places, std::greater(),
                    [&](int64_t list) { return std::pair(lists.num_tiles(first + list), list); });
  std::vector<bool> are(places.size());
  for (int64_t i = 0; i < std::min(count, lists.lists_per_group); ++i)
    are[size_t(places[size_t(i)])] = true;
  return are;
}

}  // namespace

DealtWork deal_work(const TileView& view, const Deal& deal) {
  const Direction lists(view, deal.is_transposed);
  const int64_t chunk = deal.may_split ? chunk_tiles(view, lists, deal) : kUncut;

  struct Group {
    std::vector<WorkItem> items;
    std::vector<SplitList> splits;
    int32_t slots = 0;
  };
  std::vector<Group> groups(static_cast<size_t>(view.groups));
  DealtWork dealt;
  for (int32_t g = 0; g < view.groups; ++g) {
    Group& group = groups[size_t(g)];
    const std::vector<bool> is_cut =
        longest_lists(lists, g * lists.lists_per_group, deal.lists_to_cut);
    for (int64_t list = 0; list < lists.lists_per_group; ++list) {
      const int64_t index = g * lists.lists_per_group + list, tiles = lists.num_tiles(index);
      // Slightly more than one chunk is not worth two partial results.
      const int64_t pieces = is_cut[size_t(list)]
                                 ? std::max<int64_t>(1, ceil_div(tiles, deal.cut_tiles))
                             : tiles <= chunk + chunk / 2 ? 1
                                                          : ceil_div(tiles, chunk);
      if (pieces > 1) group.splits.push_back({int32_t(list), group.slots, int32_t(pieces)});
      for (int64_t piece = 0; piece < pieces; ++piece) {
        const int64_t begin = tiles * piece / pieces, end = tiles * (piece + 1) / pieces;
        group.items.push_back({int32_t(list), int32_t(begin), int32_t(end - begin),
                               pieces > 1 ? group.slots++ : -1, lists.list_begin[index],
                               lists.list_count[index]});
      }
    }
    std::sort(group.items.begin(), group.items.end(), [](const WorkItem& a, const WorkItem& b) {
      if (a.num_tiles != b.num_tiles) return a.num_tiles > b.num_tiles;
      return a.list != b.list ? a.list < b.list : a.first_tile < b.first_tile;
    });
    dealt.items_per_group = std::max(dealt.items_per_group, int32_t(group.items.size()));
    dealt.splits_per_group = std::max(dealt.splits_per_group, int32_t(group.splits.size()));
    dealt.slots_per_group = std::max(dealt.slots_per_group, group.slots);
  }
  // Heads without a group still have their (empty) lists to finish.
  dealt.items_per_group = std::max(dealt.items_per_group, int32_t(lists.lists_per_group));
  for (Group& group : groups) {
    group.items.resize(size_t(dealt.items_per_group), {-1, 0, 0, -1});
    group.splits.resize(size_t(dealt.splits_per_group), {0, 0, 0});
    dealt.items.insert(dealt.items.end(), group.items.begin(), group.items.end());
    dealt.splits.insert(dealt.splits.end(), group.splits.begin(), group.splits.end());
  }
  return dealt;
}

void deal_work(ScheduleDraft& draft) {
  const Target& target = draft.target;
  Deal deal{.group_of = draft.made.group_of,
            .num_processors = target.num_processors,
            .may_split = target.may_split};
  draft.made.forward.work = deal_work(draft.lists, deal);
  if (!target.with_transposed) return;
  deal.is_transposed = true;
  deal.may_split = target.may_split_transposed;
  draft.made.transposed.work = deal_work(draft.lists, deal);
}

}  // namespace keyhole
