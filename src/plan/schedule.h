// src/plan/schedule.h
// The second half of compiling a plan: the lists of a part as one GPU and the heads of one call
// want them. Heads get their groups, bitmaps the layout of the kernel, and work is dealt out to
// processors. What comes out is plain arrays on the host; upload copies them and decides nothing.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/deal_shares.h"
#include "plan/deal_work.h"
#include "plan/view.h"

namespace keyhole {

// The CTAs of a kernel whose CTAs stay on their processor. None: there is one for each work item.
struct PersistentCtas {
  int32_t num_ctas = 0;
  int32_t heads_per_section = 1, heads_per_kv_head = 1;  // as in ShareDeal
  double tiles_per_item = 0;
  auto operator<=>(const PersistentCtas&) const = default;
};

// Everything that decides how lists are scheduled: equal targets give equal arrays.
struct Target {
  BitmapLayout layout = BitmapLayout::row_major;
  int64_t num_heads = 0;         // batch x heads of the call
  bool with_transposed = false;  // a backward pass: the lists by key tile, too
  bool may_split = true;         // long lists into chunks, whose results are joined
  bool may_split_transposed = true;
  int num_processors = 1;
  PersistentCtas ctas = {};  // they follow the transposed lists where there are any
  auto operator<=>(const Target&) const = default;
};

// The work of one direction.
struct ScheduledWork {
  DealtWork work;
  DealtShares shares;  // of no CTAs: there is one for each item
};

// What a part has on a GPU beside its lists.
struct ScheduledTiles {
  std::vector<int32_t> group_of;  // [target.num_heads]
  bool is_one_group = false;      // every head follows the lists of group 0
  // In the layout of the target, two 32-bit words of the mma layout in each of these. t_bitmaps:
  // of the transposed tiles; the row_major layout has none, since kernels read its columns.
  std::vector<uint64_t> bitmaps, t_bitmaps;
  ScheduledWork forward, transposed;
};

// What the passes work on.
struct ScheduleDraft {
  const TileView& lists;                // host pointers, transposed lists where the target has them
  std::span<const int32_t> planned_of;  // group_of of the heads that the plan was made for
  const Target& target;
  ScheduledTiles made;
};

// The passes, each in the file of its name, in this order.
void repeat_groups(ScheduleDraft& draft);    // a plan made for one head serves them all
void permute_bitmaps(ScheduleDraft& draft);  // into the layout that the kernel reads
void deal_work(ScheduleDraft& draft);        // lists -> work items, longest first, long ones cut
void deal_shares(ScheduleDraft& draft);      // work items -> those of each CTA that stays

// What each of them must have left behind. Throw Error(internal); the work is linear in the arrays,
// less than making them took, so that it is done every time.
void verify_groups(const ScheduleDraft& draft);
void verify_bitmaps(const ScheduleDraft& draft);
void verify_work(const ScheduleDraft& draft);
void verify_shares(const ScheduleDraft& draft);

// The parts of a plan share its heads: planned_heads is batch x heads of the plan's shape.
ScheduledTiles schedule(const TileView& lists, int64_t planned_heads, const Target& target);

// The groups of the heads of a call, for parts in either form.
std::vector<int32_t> groups_of_heads(std::span<const int32_t> planned_of, int64_t num_heads);

}  // namespace keyhole
