// src/runtime/tile_lists.h
// Tile lists of a caller in host memory, converted for kernels.
#pragma once

#include "keyhole/lists.h"
#include "plan/lists.h"

namespace keyhole {

// The lists with tiles of `tile`, which divides theirs; bits past the end of k are cleared. Throws
// Error(usage) that names the first invalid entry, count or bitmap.
TileLists tile_lists_on_host(const TileListView& lists, TileShape tile, const TensorView& q,
                             const TensorView& k);

// Adds the same lists by key tile.
void transpose_by_counting(TileLists& lists);

}  // namespace keyhole
