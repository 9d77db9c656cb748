// src/plan/lists.cpp
// Views of the owning lists.
#include "plan/lists.h"

#include <algorithm>
#include <climits>
#include <numeric>

#include "base/bits.h"

namespace keyhole {

namespace {

// PlannedKeyLists::heads_alike: the greatest common divisor of the heads at which lists change.
int32_t heads_alike(const std::vector<int32_t>& group_of) {
  size_t alike = 0;
  for (size_t head = 1; head < group_of.size(); ++head) {
    if (group_of[head] != group_of[head - 1]) alike = std::gcd(alike, head);
  }
  return int32_t(alike);
}

}  // namespace

int64_t TileLists::bitmap_words() const { return int64_t{tile.q} * words_per_row(tile.k); }
int64_t TileLists::num_bitmaps() const {
  return bitmaps.empty() ? 0 : int64_t(bitmaps.size()) / bitmap_words();
}

ListLengths TileLists::lengths() const {
  ListLengths lengths = {INT32_MAX, 0};
  const auto count = [&lengths](int32_t tiles) {
    lengths = {std::min(lengths.fewest, tiles), std::max(lengths.most, tiles)};
  };
  for (size_t list = 0; list < list_count.size(); ++list) {
    const int64_t in_group = int64_t(list) % lists_per_group(), q_tile = in_group % q_tiles;
    if (q_tile * tile.q >= residues[size_t(in_group / q_tiles)].num_q) continue;
    int32_t tiles = 0;
    for (int32_t r = 0; r < list_count[list]; ++r)
      tiles += runs[size_t(list_begin[list] + r)].count;
    count(tiles);
  }
  if (std::ranges::count(group_of, -1) > 0 || lengths.fewest == INT32_MAX) count(0);
  return lengths;
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
  view.lengths = lengths();
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
  if (!list_count.empty()) {
    const int64_t num_keys = std::accumulate(list_count.begin(), list_count.end(), int64_t{0});
    view.planned.longest = *std::ranges::max_element(list_count);
    view.planned.mean = int32_t(num_keys / int64_t(list_count.size()));
  }
  view.planned.heads_alike = heads_alike(group_of);
  return view;
}

}  // namespace keyhole
