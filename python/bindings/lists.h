// python/bindings/lists.h
// The lists of a call as Python passes them: a plan, an index tensor, key lists, or tile lists.
#pragma once

#include <nanobind/nanobind.h>

#include "keyhole/lists.h"

namespace keyhole::python {

// One of
//   a _core.Plan
//   (pointer, dtype, shape, strides, device)
//     Indices [batch, heads, lists, entries]; dtype is 0 (int32) or 1 (int64). With fewer lists
//     than queries, ceil(q_len / lists) neighbouring queries share a list.
//   (indices, counts, keys_per_entry, causal)
//     Key lists: two tuples as above, of which counts [batch, heads, lists] may be None.
//   (tile_q, tile_k, tiles, counts, bitmap_of, bitmaps)
//     Tile lists. The last four are tuples as above; all but tiles may be None. tiles and bitmap_of
//     are [batch, heads, q_tiles, capacity], counts [batch, heads, q_tiles]; bitmaps are
//     contiguous, [num_bitmaps, tile_q, ceil(tile_k / 64)], dtype 1.
// The memory must live as long as the result.
Lists lists_from(nanobind::handle lists, const TensorView& q);

// A tuple of integers as above. dimensions: "[batch, heads, lists, entries]", as many as the rank.
IndexView indices_from(nanobind::handle tuple, const char* name, int rank, const char* dimensions);

// The keys that have weight, [batch, heads, q_len, entries], as such a tuple; or None.
IndexView support_from(nanobind::handle support);

}  // namespace keyhole::python
