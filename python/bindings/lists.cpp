// python/bindings/lists.cpp
#include "lists.h"

#include <algorithm>

#include "base/bits.h"
#include "base/check.h"
#include "base/int_math.h"
#include "convert.h"

namespace keyhole::python {
namespace {

constexpr const char* kTensor = "a tuple (pointer, dtype, shape, strides, device)";
constexpr Py_ssize_t kTensorItems = 5, kKeyListItems = 4, kTileListItems = 6;

nb::handle item(nb::handle tuple, Py_ssize_t index) { return PyTuple_GetItem(tuple.ptr(), index); }

bool is_tuple_of(Py_ssize_t items, nb::handle object) {
  return PyTuple_Check(object.ptr()) && PyTuple_Size(object.ptr()) == items;
}

// There is no DType for integers: the view has the float type of the same width.
TensorView integers_from(nb::handle tuple, const char* name) {
  if (!is_tuple_of(kTensorItems, tuple)) raise_type_error(name, kTensor, tuple);
  void* const data = pointer_from(item(tuple, 0), name);
  const int64_t dtype = integer_from(item(tuple, 1), name);
  KEYHOLE_CHECK(dtype == 0 || dtype == 1, name, ": dtype ", dtype,
                "; accepted are 0 (int32) and 1 (int64)");
  const int64_t device = integer_from(item(tuple, 4), name);
  return tensor_of(data, dtype == 1 ? DType::f64 : DType::f32, item(tuple, 2), item(tuple, 3),
                   device, name);
}

IndexView key_lists_from(nb::handle tuple, const TensorView& q) {
  IndexView indices = indices_from(tuple, "indices", 4, "[batch, heads, lists, entries]");
  const int64_t q_len = q.rank == 4 ? q.shape[2] : 0;  // another shape is refused later
  const int64_t lists = indices.shape[2];
  if (lists > 0 && lists < q_len) indices.rows_per_list = ceil_div(q_len, lists);
  return indices;
}

KeyListView counted_key_lists_from(nb::handle tuple, const TensorView& q) {
  KeyListView lists{.indices = key_lists_from(item(tuple, 0), q)};
  if (const nb::handle counts = item(tuple, 1); !counts.is_none()) {
    lists.counts = indices_from(counts, "counts", 3, "[batch, heads, lists]");
  }
  lists.keys_per_entry = integer_from(item(tuple, 2), "keys_per_entry");
  lists.causal = nb::cast<bool>(item(tuple, 3));
  return lists;
}

void set_bitmaps(TileListView& lists, nb::handle tuple) {
  const TensorView bitmaps = integers_from(tuple, "bitmaps");
  const int64_t rows = lists.tile.q, words = words_per_row(lists.tile.k);
  KEYHOLE_CHECK(bitmaps.dtype == DType::f64, "attention: bitmaps are int32; expected 64 bits");
  KEYHOLE_CHECK(bitmaps.rank == 3 && bitmaps.shape[0] >= 0 && bitmaps.shape[1] == rows &&
                    bitmaps.shape[2] == words,
                "attention: bitmaps have ", bitmaps.rank, " dimensions, [..., ",
                bitmaps.shape[std::max(bitmaps.rank - 2, 0)], ", ",
                bitmaps.shape[std::max(bitmaps.rank - 1, 0)], "]; tiles of ", to_string(lists.tile),
                " have bitmaps [num_bitmaps, ", rows, ", ", words, "]");
  int64_t step = 1;
  for (int d = 2; d >= 0; step *= bitmaps.shape[d--]) {
    KEYHOLE_CHECK(
        bitmaps.num_elements() == 0 || bitmaps.shape[d] <= 1 || bitmaps.strides[d] == step,
        "attention: bitmaps have stride ", bitmaps.strides[d], " in dimension ", d, "; expected ",
        step, ": bitmaps must be contiguous");
  }
  KEYHOLE_CHECK(bitmaps.device == lists.tiles.device,
                "attention: tiles and bitmaps are on different devices; all tensors of a call must "
                "be in one place");
  lists.bitmaps = static_cast<const uint64_t*>(bitmaps.data);
  lists.num_bitmaps = bitmaps.shape[0];
}

TileListView tile_lists_from(nb::handle tuple) {
  TileListView lists;
  lists.tile.q = narrow(integer_from(item(tuple, 0), "tile"), "tile");
  lists.tile.k = narrow(integer_from(item(tuple, 1), "tile"), "tile");
  // The library checks the tile too, but only after sizes have been computed from it here.
  KEYHOLE_CHECK(lists.tile.q >= 1 && lists.tile.k >= 1, "attention: tiles of ",
                to_string(lists.tile), "; accepted are 1x1 and larger ones");
  constexpr const char* kLikeTiles = "[batch, heads, q_tiles, capacity]";
  lists.tiles = indices_from(item(tuple, 2), "tiles", 4, kLikeTiles);
  const nb::handle counts = item(tuple, 3), bitmap_of = item(tuple, 4), bitmaps = item(tuple, 5);
  if (!counts.is_none()) {
    lists.counts = indices_from(counts, "counts", 3, "[batch, heads, q_tiles]");
  }
  if (!bitmap_of.is_none()) {
    lists.bitmap_of = indices_from(bitmap_of, "bitmap_of", 4, kLikeTiles);
  }
  if (!bitmaps.is_none()) set_bitmaps(lists, bitmaps);
  return lists;
}

}  // namespace

IndexView indices_from(nb::handle tuple, const char* name, int rank, const char* dimensions) {
  const TensorView tensor = integers_from(tuple, name);
  KEYHOLE_CHECK(tensor.rank == rank, "attention: ", name, " have ", tensor.rank,
                " dimensions; expected ", rank, ": ", dimensions);
  IndexView indices;
  indices.data = tensor.data;
  indices.is_wide = tensor.dtype == DType::f64;
  std::fill_n(indices.shape, 4, 1);
  std::copy_n(tensor.shape, rank, indices.shape);
  std::copy_n(tensor.strides, rank, indices.strides);
  indices.device = tensor.device;
  return indices;
}

Lists lists_from(nb::handle lists, const TensorView& q) {
  if (nb::isinstance<Plan>(lists)) return nb::cast<const Plan&>(lists);
  if (is_tuple_of(kTileListItems, lists)) return tile_lists_from(lists);
  if (is_tuple_of(kTensorItems, lists)) return key_lists_from(lists, q);
  if (is_tuple_of(kKeyListItems, lists)) return counted_key_lists_from(lists, q);
  raise_type_error(
      "lists",
      "a _core.Plan, a tuple of indices (pointer, dtype, shape, strides, device), one of "
      "key lists (indices, counts, keys_per_entry, causal), or one of tile lists "
      "(tile_q, tile_k, tiles, counts, bitmap_of, bitmaps)",
      lists);
}

IndexView support_from(nb::handle support) {
  if (support.is_none()) return {};
  return indices_from(support, "support", 4, "[batch, heads, q_len, entries]");
}

}  // namespace keyhole::python
