// src/plan/lists.h
// The owning form of what view.h points at: tile lists and key lists, as plain vectors.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/view.h"

namespace keyhole {

// One part of a plan in tiles form, for one tile shape. Field by field as in TileView.
struct TileLists {
  int64_t q_len = 0, k_len = 0;
  TileShape tile;
  int32_t stride = 1;
  int32_t q_tiles = 0, k_tiles = 0;  // per residue class
  int32_t groups = 0;
  std::vector<ResidueClass> residues;
  std::vector<int32_t> group_of;
  std::vector<int64_t> list_begin;
  std::vector<int32_t> list_count;
  std::vector<TileRun> runs;
  std::vector<int32_t> order;
  std::vector<uint64_t> bitmaps;
  std::vector<int64_t> t_list_begin;  // empty until transposed
  std::vector<int32_t> t_list_count;
  std::vector<TileRun> t_runs;

  int32_t classes() const { return stride; }
  int64_t bitmap_words() const;  // 64-bit words of one bitmap
  int64_t num_bitmaps() const;
  int64_t lists_per_group() const { return int64_t{stride} * q_tiles; }
  ListLengths lengths() const;
  bool is_transposed() const { return t_list_begin.size() == size_t(groups) * stride * k_tiles; }
  TileView view() const;
};

// One part of a plan in gather form.
struct KeyLists {
  int64_t q_len = 0, k_len = 0;
  int32_t groups = 0;
  std::vector<int32_t> group_of;
  std::vector<int64_t> list_begin;
  std::vector<int32_t> list_count;
  std::vector<int32_t> keys;
  std::vector<int64_t> t_list_begin;  // empty until transposed
  std::vector<int32_t> t_list_count;
  std::vector<int32_t> t_lists;

  bool is_transposed() const { return t_list_begin.size() == size_t(groups) * size_t(k_len); }
  GatherView view() const;
};

}  // namespace keyhole
