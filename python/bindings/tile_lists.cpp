// python/bindings/tile_lists.cpp
// _core.tile_lists: a pattern as plain tile lists, for block masks of other libraries. Unlike a
// plan for attention it has a single part, whatever that costs: block masks have neither residue
// classes nor lists of keys.
#include <nanobind/nanobind.h>

#include "base/bits.h"
#include "base/int_math.h"
#include "convert.h"
#include "module.h"
#include "plan/plan_state.h"

namespace keyhole::python {
namespace {

template <class T>
nb::bytes bytes_of(const std::vector<T>& values) {
  return nb::bytes(values.data(), values.size() * sizeof(T));
}

// Runs of tiles, expanded to single tiles.
struct Tiles {
  std::vector<int64_t> offsets = {0};  // [groups * q_tiles + 1]
  std::vector<int32_t> keys, bitmap;   // bitmap -1: full
};

Tiles expanded(const TileView& view) {
  Tiles tiles;
  for (int64_t list = 0; list < int64_t{view.groups} * view.q_tiles; ++list) {
    const TileRun* run = view.runs + view.list_begin[list];
    for (const TileRun* end = run + view.list_count[list]; run != end; ++run) {
      for (int32_t i = 0; i < run->count; ++i) {
        tiles.keys.push_back(run->tile + i);
        tiles.bitmap.push_back(run->bitmap);
      }
    }
    tiles.offsets.push_back(int64_t(tiles.keys.size()));
  }
  return tiles;
}

// Arrays as bytes, in native byte order. A pattern without pairs has no part, and no lists.
nb::dict tile_lists(const Pattern& pattern, nb::handle q_len, nb::handle k_len, nb::handle batch,
                    nb::handle heads, nb::handle offset, nb::handle tile_q, nb::handle tile_k) {
  const Shape shape{integer_from(batch, "batch"), integer_from(heads, "heads"),
                    integer_from(q_len, "q_len"), integer_from(k_len, "k_len"),
                    optional_integer_from(offset, "offset")};
  const TileShape tile{narrow(integer_from(tile_q, "block_size"), "block_size"),
                       narrow(integer_from(tile_k, "block_size"), "block_size")};
  Tiles tiles;
  std::vector<int32_t> group_of(size_t(shape.batch * shape.heads), -1);
  std::vector<uint64_t> bitmaps;
  {
    const nb::gil_scoped_release release;
    const Plan plan = make_plan(pattern, shape, SplitPolicy::plain);
    const CompiledTiles& compiled = plan.state().tiles(tile);
    if (!compiled.views.empty()) {
      const TileView& view = compiled.views.front();
      tiles = expanded(view);
      group_of.assign(view.group_of, view.group_of + group_of.size());
      const int64_t words = view.num_bitmaps * tile.q * words_per_row(tile.k);
      bitmaps.assign(view.bitmaps, view.bitmaps + words);
    }
  }
  nb::dict lists;
  lists["q_tiles"] = ceil_div(shape.q_len, tile.q);
  lists["k_tiles"] = ceil_div(shape.k_len, tile.k);
  lists["words_per_row"] = words_per_row(tile.k);
  lists["group_of"] = bytes_of(group_of);
  lists["offsets"] = bytes_of(tiles.offsets);
  lists["keys"] = bytes_of(tiles.keys);
  lists["bitmap"] = bytes_of(tiles.bitmap);
  lists["bitmaps"] = bytes_of(bitmaps);
  return lists;
}

}  // namespace

void add_tile_lists(nb::module_& module) {
  using namespace nb::literals;
  module.def("tile_lists", &tile_lists, "pattern"_a, "q_len"_a, "k_len"_a, "batch"_a, "heads"_a,
             "offset"_a.none(), "tile_q"_a, "tile_k"_a,
             "A pattern as tile lists and bitmaps, in a single part, whatever that costs.");
}

}  // namespace keyhole::python
