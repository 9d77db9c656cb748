// src/runtime/tile_lists.cpp
#include "runtime/tile_lists.h"

#include <algorithm>

#include "base/bits.h"
#include "base/check.h"
#include "base/int_math.h"
#include "runtime/index_lists.h"

namespace keyhole {
namespace {

// Cuts the caller's tiles into kernel tiles, list by list.
class Cutter {
 public:
  Cutter(const TileListView& from, TileShape tile, const TensorView& q, const TensorView& k)
      : from_(from), tile_(tile), down_(from.tile.q / tile.q), across_(from.tile.k / tile.k) {
    to_.q_len = q.shape[2];
    to_.k_len = k.shape[2];
    to_.tile = tile;
    to_.q_tiles = narrow(ceil_div(to_.q_len, tile.q), "attention: query tiles");
    to_.k_tiles = narrow(ceil_div(to_.k_len, tile.k), "attention: key tiles");
    const int64_t heads = from.tiles.shape[1];
    to_.groups = narrow(from.tiles.shape[0] * heads, "attention: heads of the tile lists");
    to_.residues = {{0, to_.q_len, 0, to_.k_len}};
    for (int64_t i = 0; i < q.shape[0] * q.shape[1]; ++i) {
      to_.group_of.push_back(int32_t(i / std::max<int64_t>(1, q.shape[1] / heads)));
    }
    bitmaps_.assign(size_t(num_keys()), -1);
  }

  TileLists cut() {
    for (int32_t group = 0; group < to_.groups; ++group) {
      for (int32_t q_tile = 0; q_tile < to_.q_tiles; ++q_tile) cut_list(group, q_tile);
    }
    // In index order: nothing is known about which are long.
    for (int32_t group = 0; group < to_.groups; ++group) {
      for (int32_t q_tile = 0; q_tile < to_.q_tiles; ++q_tile) to_.order.push_back(q_tile);
    }
    return std::move(to_);
  }

 private:
  // Bitmaps of kernel tiles, keyed by their origin: the caller's bitmap (the last one stands for
  // full), the kernel tile inside it, and whether rows or columns extend past an end.
  int64_t num_keys() const { return (from_.num_bitmaps + 1) * down_ * across_ * 4; }

  [[noreturn]] void refuse(int32_t group, int64_t list, int64_t place, const char* what,
                           int64_t value, int64_t end) const {
    const int64_t heads = from_.tiles.shape[1];
    throw Error(ErrorKind::usage,
                say("attention: ", what, "[", group / heads, ", ", group % heads, ", ", list, ", ",
                    place, "] is ", value, "; accepted are ",
                    end > 0 ? say("0 to ", end - 1, ", and -1 for none") : "-1 alone"));
  }

  void cut_list(int32_t group, int32_t q_tile) {
    const int64_t list = q_tile / down_, whole_k_tiles = ceil_div(to_.k_len, from_.tile.k);
    const int64_t capacity = from_.tiles.shape[3];
    int64_t count = capacity;
    if (from_.counts.is_given()) {
      count = index_at(from_.counts, group, list, 0);
      const int64_t heads = from_.tiles.shape[1];
      KEYHOLE_CHECK(count >= 0 && count <= capacity, "attention: counts[", group / heads, ", ",
                    group % heads, ", ", list, "] is ", count, "; accepted are 0 to ", capacity,
                    ", the capacity of a list");
    }
    struct Entry {
      int64_t tile, bitmap;
      auto operator<=>(const Entry&) const = default;
    };
    std::vector<Entry> entries;
    for (int64_t place = 0; place < count; ++place) {
      const int64_t tile = index_at(from_.tiles, group, list, place);
      if (tile == -1) continue;
      if (tile < 0 || tile >= whole_k_tiles) {
        refuse(group, list, place, "tiles", tile, whole_k_tiles);
      }
      const int64_t bitmap =
          from_.bitmap_of.is_given() ? index_at(from_.bitmap_of, group, list, place) : -1;
      if (bitmap < -1 || bitmap >= from_.num_bitmaps) {
        refuse(group, list, place, "bitmap_of", bitmap, from_.num_bitmaps);
      }
      entries.push_back({tile, bitmap});
    }
    std::ranges::sort(entries);
    to_.list_begin.push_back(int64_t(to_.runs.size()));
    for (const Entry& entry : entries) {
      for (int64_t j = 0; j < across_; ++j) {
        const int64_t tile = entry.tile * across_ + j;
        if (tile < to_.k_tiles) {
          to_.runs.push_back({int32_t(tile), 1, bitmap_for(entry.bitmap, q_tile, int32_t(tile))});
        }
      }
    }
    to_.list_count.push_back(int32_t(int64_t(to_.runs.size()) - to_.list_begin.back()));
  }

  int32_t bitmap_for(int64_t bitmap, int32_t q_tile, int32_t k_tile) {
    const int64_t rows = std::min<int64_t>(tile_.q, to_.q_len - int64_t{q_tile} * tile_.q);
    const int64_t columns = std::min<int64_t>(tile_.k, to_.k_len - int64_t{k_tile} * tile_.k);
    const bool is_cut = rows < tile_.q || columns < tile_.k;
    if (bitmap < 0 && !is_cut) return kFull;
    const int64_t down = q_tile % down_, across = k_tile % across_;
    const int64_t source = bitmap < 0 ? from_.num_bitmaps : bitmap;
    int32_t& known = bitmaps_[size_t(((source * down_ + down) * across_ + across) * 4 +
                                     (rows < tile_.q) * 2 + (columns < tile_.k))];
    if (known < 0) known = draw(bitmap, down * tile_.q, across * tile_.k, rows, columns);
    return known;
  }

  int32_t draw(int64_t bitmap, int64_t first_row, int64_t first_column, int64_t rows,
               int64_t columns) {
    const auto number = int32_t(to_.num_bitmaps());
    const int32_t words = words_per_row(tile_.k), from_words = words_per_row(from_.tile.k);
    to_.bitmaps.resize(to_.bitmaps.size() + size_t(to_.bitmap_words()));
    uint64_t* const bits = to_.bitmaps.data() + int64_t{number} * to_.bitmap_words();
    for (int64_t row = 0; row < rows; ++row) {
      if (bitmap < 0) {
        set_bits(bits + row * words, 0, columns);
        continue;
      }
      const uint64_t* const from =
          from_.bitmaps + (bitmap * from_.tile.q + first_row + row) * from_words;
      for (int64_t column = 0; column < columns; ++column) {
        if (get_bit(from, first_column + column)) set_bits(bits + row * words, column, column + 1);
      }
    }
    return number;
  }

  const TileListView& from_;
  const TileShape tile_;
  const int32_t down_, across_;  // kernel tiles per tile of the caller
  TileLists to_;
  std::vector<int32_t> bitmaps_;
};

}  // namespace

TileLists tile_lists_on_host(const TileListView& lists, TileShape tile, const TensorView& q,
                             const TensorView& k) {
  return Cutter(lists, tile, q, k).cut();
}

// By counting: such lists may name a tile twice, which the transpose of compiled lists does not
// allow.
void transpose_by_counting(TileLists& lists) {
  lists.t_list_count.assign(size_t(lists.groups) * size_t(lists.k_tiles), 0);
  const auto for_each_tile = [&](auto visit) {
    for (size_t list = 0; list < lists.list_count.size(); ++list) {
      const int64_t first_t_list = int64_t(list) / lists.q_tiles * lists.k_tiles;
      for (int32_t i = 0; i < lists.list_count[list]; ++i) {
        const TileRun& run = lists.runs[size_t(lists.list_begin[list] + i)];
        visit(size_t(first_t_list + run.tile),
              TileRun{int32_t(int64_t(list) % lists.q_tiles), 1, run.bitmap});
      }
    }
  };
  for_each_tile([&](size_t t_list, const TileRun&) { ++lists.t_list_count[t_list]; });
  int64_t sum = 0;
  for (const int32_t count : lists.t_list_count) {
    lists.t_list_begin.push_back(sum);
    sum += count;
  }
  std::vector<int64_t> next = lists.t_list_begin;
  lists.t_runs.resize(lists.runs.size());
  for_each_tile(
      [&](size_t t_list, const TileRun& run) { lists.t_runs[size_t(next[t_list]++)] = run; });
}

}  // namespace keyhole
