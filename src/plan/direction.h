// src/plan/direction.h
// The lists of one direction of a part: by query tile or, for a backward pass, by key tile. The
// scheduling passes treat both alike.
#pragma once

#include <cstdint>

#include "plan/view.h"

namespace keyhole {

class Direction {
 public:
  Direction(const TileView& view, bool is_transposed)
      : list_begin(is_transposed ? view.t_list_begin : view.list_begin),
        list_count(is_transposed ? view.t_list_count : view.list_count),
        runs(is_transposed ? view.t_runs : view.runs),
        lists_per_group(int64_t{view.classes} * (is_transposed ? view.k_tiles : view.q_tiles)),
        view_(view),
        is_transposed_(is_transposed) {}

  const int64_t* list_begin;  // [groups * lists_per_group]
  const int32_t* list_count;  // [groups * lists_per_group]
  const TileRun* runs;
  int64_t lists_per_group;

  // How many tiles list `index` of all groups has.
  int64_t num_tiles(int64_t index) const {
    int64_t total = 0;
    for (int32_t r = 0; r < list_count[index]; ++r) total += runs[list_begin[index] + r].count;
    return total;
  }

  // Whether the tile of a list has rows. Every class has as many tiles as the longest one, so some
  // tiles are empty.
  bool has_rows(int32_t list) const {
    const int32_t tiles = is_transposed_ ? view_.k_tiles : view_.q_tiles;
    const int32_t tile_rows = is_transposed_ ? view_.tile.k : view_.tile.q;
    return int64_t{list % tiles} * tile_rows < rows_of_class(list / tiles);
  }

 private:
  int64_t rows_of_class(int32_t class_index) const {
    if (view_.stride == 1) return is_transposed_ ? view_.k_len : view_.q_len;
    const ResidueClass& residue = view_.residues[class_index];
    return is_transposed_ ? residue.num_k : residue.num_q;
  }

  const TileView& view_;
  bool is_transposed_;
};

}  // namespace keyhole
