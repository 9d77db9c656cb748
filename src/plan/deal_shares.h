// src/plan/deal_shares.h
// Deals the work items of all heads out to CTAs that stay on their processors and follow one item
// after the other.
//
// Heads are taken section by section: what the items of a section read again and again (keys and
// values; by key tile, queries and gradients of the output) fits the second-level cache together.
// Inside a section the longest item that is left goes to the CTA that has least to do so far,
// whatever section that is from: nobody waits between sections. The shortest items of all sections
// come last, about one for each CTA, and even out what the longer ones leave. Where a CTA has so
// many items that the longest is less than a fiftieth of its load, they come list after list
// instead: neighbours read the same, and one head alone may be too large for the cache. Everything
// is decided here, once for a plan and a call's shape, so that a kernel draws nothing from a
// counter and gives the same bits every time.
//
//   2 CTAs, items of 5 4 3 3 2 tiles        CTA 0: 5 3 | ...       CTA 1: 4 3 2 | ...
//
// An order for every head takes 48 bytes an item, beside the 32 KiB and more of q and out that the
// item is about: not worth a rule for repeating it from section to section.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/deal_work.h"
#include "plan/view.h"

namespace keyhole {

struct ShareDeal {
  std::span<const int32_t> group_of;  // of all heads that will run
  bool is_transposed = false;         // the lists of a backward pass, by key tile
  int32_t num_ctas = 1;
  int32_t heads_per_section = 1;  // at most; a multiple of heads_per_kv_head
  int32_t heads_per_kv_head = 1;  // query heads that share keys stay in one section
  double tiles_per_item = 0;      // what an item costs beside its tiles, in tiles
};

// The owning form of Shares.
struct DealtShares {
  std::vector<ShareItem> items;  // the first of each CTA, then the others, CTA after CTA
  int32_t num_ctas = 0;          // no more than there are items
};

// `view` points to host memory; `work` was dealt from it.
DealtShares deal_shares(const TileView& view, const DealtWork& work, const ShareDeal& deal);

}  // namespace keyhole
