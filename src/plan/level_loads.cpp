// src/plan/level_loads.cpp
// A few hundred items of equal length keep some CTAs busy while the others wait: 2,048 of them on
// 132 CTAs are 15.5 rounds and take 16. So some of the longest lists are cut, and their chunks come
// last. Backward passes only: there a chunk adds 128 KiB of partial results to lists of megabytes.
#include <algorithm>
#include <utility>

#include "base/int_math.h"
#include "plan/direction.h"
#include "plan/schedule.h"

namespace keyhole {
namespace {

// Loads that differ less are left alone, and so are those that cutting makes hardly better.
constexpr double kWorthwhile = 0.01;
// With more items for each CTA, differences are small. Dealing work out takes about a microsecond
// an item, and is tried a few times.
constexpr int64_t kMostItems = 32;
// A chunk costs its partial results beside the fixed cost of an item: about as much again.
double cost_of_chunks(const ScheduleDraft& draft, const DealtWork& work) {
  const double chunks = double(work.slots_per_group) * double(draft.made.group_of.size());
  return chunks * draft.target.ctas.tiles_per_item / draft.target.ctas.num_ctas;
}

int64_t longest_list(const Direction& lists, int64_t groups) {
  int64_t longest = 0;
  for (int64_t list = 0; list < groups * lists.lists_per_group; ++list) {
    longest = std::max(longest, lists.num_tiles(list));
  }
  return longest;
}

bool may_cut(const ScheduleDraft& draft) {
  const Target& target = draft.target;
  if (!target.with_transposed || !target.may_split_transposed || target.ctas.num_ctas == 0 ||
      target.ctas.in_list_order) {
    return false;
  }
  const ScheduledWork& dealt = draft.made.transposed;
  const auto items = int64_t(dealt.shares.items.size());
  return dealt.work.slots_per_group == 0 && items >= target.ctas.num_ctas &&
         items <= kMostItems * target.ctas.num_ctas &&
         dealt.shares.longest > (1 + kWorthwhile) * dealt.shares.mean;
}

}  // namespace

void level_loads(ScheduleDraft& draft) {
  if (!may_cut(draft)) return;
  const Target& target = draft.target;
  const auto heads = int64_t(draft.made.group_of.size());
  const Direction lists(draft.lists, /*is_transposed=*/true);
  const int64_t longest = longest_list(lists, draft.lists.groups);
  ScheduledWork& best = draft.made.transposed;
  double least = (1 - kWorthwhile) * best.shares.longest;
  // Half a list for each CTA, or a whole one, in 2 to 8 chunks.
  for (const int64_t halves : {1, 2}) {
    for (const int64_t chunks : {2, 4, 8}) {
      const int64_t tiles = ceil_div(longest, chunks);
      if (tiles < kShortestChunk) break;
      ScheduledWork cut;
      cut.work = deal_work(draft.lists,
                           {.group_of = draft.made.group_of,
                            .num_processors = target.num_processors,
                            .is_transposed = true,
                            .lists_to_cut = ceil_div(halves * target.ctas.num_ctas, 2 * heads),
                            .cut_tiles = tiles});
      ShareDeal deal = share_deal(draft);
      deal.items_at_end = int64_t{cut.work.slots_per_group} * heads;
      cut.shares = deal_shares(draft.lists, cut.work, deal);
      const double load = cut.shares.longest + cost_of_chunks(draft, cut.work);
      if (load >= least) continue;
      least = load;
      best = std::move(cut);
    }
  }
}

void verify_levelled(const ScheduleDraft& draft) {
  if (draft.made.transposed.work.slots_per_group == 0) return;
  verify_work(draft);
  verify_shares(draft);
}

}  // namespace keyhole
