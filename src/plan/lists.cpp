// src/plan/lists.cpp
// Views of the owning lists.
#include "plan/lists.h"

#include "base/bits.h"

namespace keyhole {

int64_t TileLists::bitmap_words() const { return int64_t{tile.q} * words_per_row(tile.k); }
int64_t TileLists::num_bitmaps() const {
  return bitmaps.empty() ? 0 : int64_t(bitmaps.size()) / bitmap_words();
}

TileView TileLists::view() const {
  TileView view{};
  view.q_len = q_len;
  view.k_len = k_len;
  view.tile = tile;
  view.stride = stride;
  view.classes = classes();
  view.q_tiles = q_tiles;
  view.k_tiles = k_tiles;
  view.groups = groups;
  view.residues = residues.data();
  view.group_of = group_of.data();
  view.list_begin = list_begin.data();
  view.list_count = list_count.data();
  view.runs = runs.data();
  view.order = order.data();
  view.bitmaps = bitmaps.data();
  view.num_bitmaps = num_bitmaps();
  if (is_transposed()) {
    view.t_list_begin = t_list_begin.data();
    view.t_list_count = t_list_count.data();
    view.t_runs = t_runs.data();
  }
  return view;
}

GatherView KeyLists::view() const {
  GatherView view{};
  view.q_len = q_len;
  view.k_len = k_len;
  view.groups = groups;
  view.rows_per_list = 1;
  view.lists = q_len;
  view.group_of = group_of.data();
  view.list_begin = list_begin.data();
  view.list_count = list_count.data();
  view.keys = keys.data();
  if (is_transposed()) {
    view.t_list_begin = t_list_begin.data();
    view.t_list_count = t_list_count.data();
    view.t_lists = t_lists.data();
  }
  return view;
}

}  // namespace keyhole
