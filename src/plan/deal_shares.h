// src/plan/deal_shares.h
// The static tile scheduler: assigns the work items of all heads to persistent CTAs.
//
// Heads are taken in sections. What the items of a section read repeatedly (keys and values; by key
// tile, queries and output gradients) fits the L2 cache together. Inside a section, the longest
// remaining item goes to the CTA with the least load, counted over all sections: no CTA waits
// between sections. The shortest items of all sections come last, about one per CTA, to even out
// the loads.
//
// If a CTA has so many items that the longest is less than a fiftieth of its load, items come list
// after list instead: neighbours read the same keys, and one head alone may be too large for the
// cache.
//
// All of this is decided here, once for a plan and the shape of a call. A kernel needs no atomic
// counter and gives the same bits every time.
//
// In list order, which kernels need that add up key tiles one after another, CTAs draw items from a
// counter instead: an item then waits only for items that have begun.
//
//   2 CTAs, items of 5 4 3 3 2 tiles        CTA 0: 5 3 | ...       CTA 1: 4 3 2 | ...
//
// Storing the order for every head takes 48 bytes an item, beside the 32 KiB and more of q and out
// that the item covers. A rule that repeats it from section to section is not worth it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/deal_work.h"
#include "plan/view.h"

namespace keyhole {

struct ShareDeal {
  std::span<const int32_t> group_of;  // of all heads of the call
  bool is_transposed = false;         // the lists of a backward pass, by key tile
  int32_t num_ctas = 1;
  int32_t heads_per_section = 1;  // at most; a multiple of heads_per_kv_head
  int32_t heads_per_kv_head = 1;  // query heads that share keys stay in one section
  double tiles_per_item = 0;      // the fixed cost of an item, in tiles
  int64_t items_at_end = 0;       // at least so many short items come last; 0: one for each CTA
  bool in_list_order = false;     // items of a section come list after list; CTAs draw them
};

// The owning form of Shares.
struct DealtShares {
  std::vector<ShareItem> items;  // the first of each CTA, then the others, CTA after CTA
  int32_t num_ctas = 0;          // no more than there are items
  double longest = 0, mean = 0;  // the loads of the CTAs, in tiles; fixed costs included
};

// `view` points to host memory; `work` was made from it.
DealtShares deal_shares(const TileView& view, const DealtWork& work, const ShareDeal& deal);

}  // namespace keyhole
