// src/plan/deal_work.h
// Turns the lists of a part into work items: longest first. Lists that would keep one SM busy long
// after the others are split into chunks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/view.h"

namespace keyhole {

// The owning form of WorkView.
struct DealtWork {
  std::vector<WorkItem> items;
  std::vector<SplitList> splits;
  int32_t items_per_group = 0, splits_per_group = 0, slots_per_group = 0;
};

struct Deal {
  std::span<const int32_t> group_of;  // of all heads of the call
  int64_t num_processors = 1;
  bool is_transposed = false;  // the lists of a backward pass, by key tile
  bool may_split = true;
};

// `view` points to host memory.
DealtWork deal_work(const TileView& view, const Deal& deal);

}  // namespace keyhole
