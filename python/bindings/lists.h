// python/bindings/lists.h
// What attention follows, as Python passes it: a plan, an index tensor, or tile lists.
#pragma once

#include <nanobind/nanobind.h>

#include "keyhole/lists.h"

namespace keyhole::python {

// One of
//   a _core.Plan
//   (pointer, dtype, shape, strides, device): indices [batch, heads, lists, entries], where dtype
//   is
//     0 (int32) or 1 (int64). Queries share lists evenly where there are fewer lists than queries.
//   (tile_q, tile_k, tiles, counts, bitmap_of, bitmaps): tile lists. The last four are such tuples;
//     all but tiles may be None. tiles and bitmap_of are [batch, heads, q_tiles, capacity], counts
//     [batch, heads, q_tiles]; bitmaps are [num_bitmaps, tile_q, ceil(tile_k / 64)] of dtype 1, one
//     behind the other.
// Memory must live as long as what comes back.
Lists lists_from(nanobind::handle lists, const TensorView& q);

}  // namespace keyhole::python
