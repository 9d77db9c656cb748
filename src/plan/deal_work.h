// src/plan/deal_work.h
// Turns the lists of a part into work items: longest first. Lists that would keep one SM busy long
// after the others are split into chunks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/view.h"

namespace keyhole {

// Shorter chunks would cost more for their partial results than they save: 16 tiles of 64 keys.
inline constexpr int64_t kShortestChunk = 16;

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
  // The longest lists of each group that are cut so that CTAs end together (level_loads.cpp), and
  // the most tiles of their chunks.
  int64_t lists_to_cut = 0, cut_tiles = 0;
};

// `view` points to host memory.
DealtWork deal_work(const TileView& view, const Deal& deal);

}  // namespace keyhole
