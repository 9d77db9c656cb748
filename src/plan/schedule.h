// src/plan/schedule.h
// The second half of compiling a plan: the lists of a part, prepared for one GPU and the heads of
// one call. Heads get their groups, bitmaps get the layout of the kernel, and work is assigned to
// CTAs. The result is plain arrays on the host; upload copies them and decides nothing.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/deal_shares.h"
#include "plan/deal_work.h"
#include "plan/view.h"

namespace keyhole {

// The CTAs of a persistent kernel. num_ctas 0: one CTA per work item.
struct PersistentCtas {
  int32_t num_ctas = 0;
  int32_t heads_per_section = 1, heads_per_kv_head = 1;  // as in ShareDeal
  double tiles_per_item = 0;
  bool in_list_order = false;  // as in ShareDeal
  auto operator<=>(const PersistentCtas&) const = default;
};

// Everything the schedule depends on: equal targets give equal arrays.
struct Target {
  BitmapLayout layout = BitmapLayout::row_major;
  int64_t num_heads = 0;         // batch x heads of the call
  bool with_transposed = false;  // a backward pass: also the lists by key tile
  bool may_split = true;         // long lists into chunks, whose results are combined
  bool may_split_transposed = true;
  int num_processors = 1;
  PersistentCtas ctas = {};  // they process the transposed lists, if there are any
  auto operator<=>(const Target&) const = default;
};

// The work of one direction.
struct ScheduledWork {
  DealtWork work;
  DealtShares shares;  // no CTAs: one CTA per item
};

// What a part needs on a GPU, beside its lists.
struct ScheduledTiles {
  std::vector<int32_t> group_of;  // [target.num_heads]
  bool is_one_group = false;      // every head has the lists of group 0
  // In the layout of the target; each word holds two 32-bit words of the mma layout. t_bitmaps: for
  // the transposed tiles. The row_major layout has none, since kernels read its columns.
  std::vector<uint64_t> bitmaps, t_bitmaps;
  ScheduledWork forward, transposed;
};

// What the passes work on.
struct ScheduleDraft {
  const TileView& lists;  // host pointers; with transposed lists if the target needs them
  std::span<const int32_t> planned_of;  // group_of of the heads that the plan was made for
  const Target& target;
  ScheduledTiles made;
};

// The passes, each in the file of its name, in this order.
void repeat_groups(ScheduleDraft& draft);    // a plan made for one head serves them all
void permute_bitmaps(ScheduleDraft& draft);  // into the layout that the kernel reads
void deal_work(ScheduleDraft& draft);        // lists -> work items, longest first, long ones split
void deal_shares(ScheduleDraft& draft);      // work items -> the items of each persistent CTA
void level_loads(ScheduleDraft& draft);      // some lists are cut, so that these CTAs end together

// The invariants after each pass. They throw Error(internal). Their cost is linear in the arrays,
// less than making them, so they always run.
void verify_groups(const ScheduleDraft& draft);
void verify_bitmaps(const ScheduleDraft& draft);
void verify_work(const ScheduleDraft& draft);
void verify_shares(const ScheduleDraft& draft);
void verify_levelled(const ScheduleDraft& draft);  // both again, where lists were cut

// What deal_shares is asked for.
ShareDeal share_deal(const ScheduleDraft& draft);

// planned_heads: batch x heads of the plan's shape, the same for all parts.
ScheduledTiles schedule(const TileView& lists, int64_t planned_heads, const Target& target);

// The groups of the heads of a call, for parts in either form.
std::vector<int32_t> groups_of_heads(std::span<const int32_t> planned_of, int64_t num_heads);

}  // namespace keyhole
