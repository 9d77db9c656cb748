// src/kernels/cpu/tile_walk.h
// Walks a list of runs in strips: neighbouring tiles of the list side by side, up to a width, which
// amortises the cost of a step over many tiles.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "kernels/cpu/config.h"
#include "plan/view.h"

namespace keyhole::cpu {

// A strip is a few pieces of consecutive rows (of keys or, transposed, of queries), and the
// partial tiles among them.
struct Strip {
  static constexpr int kMostTiles = int(kScanKeys / 16);  // of the widest; 16: the smallest tile
  struct Piece {
    int64_t row, count;  // rows [row, row + count) of the class
    int64_t col;         // where the piece begins in the strip
  };
  struct Partial {
    int64_t col;
    int32_t bitmap;
  };
  std::array<Piece, kMostTiles> piece_storage;
  std::array<Partial, kMostTiles> partial_storage;
  int num_pieces = 0, num_partials = 0;
  int64_t cols = 0;

  std::span<const Piece> pieces() const { return {piece_storage.data(), size_t(num_pieces)}; }
  std::span<const Partial> partials() const {
    return {partial_storage.data(), size_t(num_partials)};
  }

  void clear() { num_pieces = num_partials = 0, cols = 0; }
  void add(int64_t row, int64_t count, int32_t bitmap) {
    if (bitmap != kFull) partial_storage[size_t(num_partials++)] = {cols, bitmap};
    Piece* last = num_pieces > 0 ? &piece_storage[size_t(num_pieces - 1)] : nullptr;
    if (last != nullptr && last->row + last->count == row) {
      last->count += count;
    } else {
      piece_storage[size_t(num_pieces++)] = {row, count, cols};
    }
    cols += count;
  }
};

// Calls visit(strip) for all tiles of `runs`, in order. `tile`: rows per tile; `widest`: rows per
// strip, a multiple of it.
template <class Visit>
void for_each_strip(std::span<const TileRun> runs, int64_t tile, int64_t widest, Visit visit) {
  Strip strip;
  for (const TileRun& run : runs) {
    int64_t row = run.tile * tile, left = run.count * tile;
    while (left > 0) {
      const int64_t count = std::min(left, widest - strip.cols);
      strip.add(row, count, run.bitmap);
      row += count;
      left -= count;
      if (strip.cols == widest) {
        visit(std::as_const(strip));
        strip.clear();
      }
    }
  }
  if (strip.cols > 0) visit(std::as_const(strip));
}

inline std::span<const TileRun> list_of(const TileView& view, int32_t group, int32_t c,
                                        int32_t q_tile) {
  if (group < 0) return {};
  const int64_t list = view.list_index(group, c, q_tile);
  return {view.runs + view.list_begin[list], size_t(view.list_count[list])};
}
inline std::span<const TileRun> t_list_of(const TileView& view, int32_t group, int32_t c,
                                          int32_t k_tile) {
  if (group < 0) return {};
  const int64_t list = view.t_list_index(group, c, k_tile);
  return {view.t_runs + view.t_list_begin[list], size_t(view.t_list_count[list])};
}

// Here a table has contiguous 32-bit entries, keys before padding (runtime/index_lists.h).
inline std::span<const int32_t> keys_of(const GatherView& view, int32_t group, int64_t query) {
  if (group < 0) return {};
  const KeyTable& table = view.table;
  const int64_t list = query / view.rows_per_list, place = group * view.lists + list;
  const int32_t* keys =
      table.is_given() ? static_cast<const int32_t*>(table.entries) + table.begin_of(group, list)
                       : view.keys + view.list_begin[place];
  int64_t count = table.is_given() ? table.count : view.list_count[place];
  while (count > 0 && keys[count - 1] < 0) --count;  // padding
  return {keys, size_t(count)};
}
inline std::span<const int32_t> lists_of(const GatherView& view, int32_t group, int64_t key) {
  if (group < 0) return {};
  const int64_t list = group * view.k_len + key;
  return {view.t_lists + view.t_list_begin[list], size_t(view.t_list_count[list])};
}

// Calls visit(some) for all of `list`, at most kStripKeys at a time.
template <class Visit>
void in_strips(std::span<const int32_t> list, Visit visit) {
  for (; !list.empty(); list = list.subspan(std::min(list.size(), size_t(kStripKeys)))) {
    visit(list.first(std::min(list.size(), size_t(kStripKeys))));
  }
}
// The same with the queries that attend to a key.
template <class Visit>
void queries_in_strips(const GatherView& view, int32_t group, int64_t key, Visit visit) {
  if (view.rows_per_list == 1) return in_strips(lists_of(view, group, key), visit);
  std::array<int32_t, size_t(kStripKeys)> queries;
  size_t count = 0;
  for (const int32_t list : lists_of(view, group, key)) {
    for (int64_t query = view.first_query(list); query < view.first_query(list + 1); ++query) {
      queries[count++] = int32_t(query);
      if (count < queries.size()) continue;
      visit(std::span<const int32_t>(queries));
      count = 0;
    }
  }
  if (count > 0) visit(std::span<const int32_t>(queries.data(), count));
}

}  // namespace keyhole::cpu
