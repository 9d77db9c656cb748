// src/plan/estimate.h
// Estimates what a pattern would cost in one form or another, from a sample of its queries.
// Choosing a form must not cost more than the plan itself.
#pragma once

#include <cstdint>

#include "keyhole/plan.h"
#include "plan/split_parts.h"

namespace keyhole {

// Pairs that attend, for one head.
double estimate_pairs(const Node& node, const Shape& shape);
// Tiles of this shape that a part with this stride would list, for one head.
double estimate_tiles(const Node& node, const Shape& shape, int64_t stride, TileShape tile);
// The tiles in plain coordinates that hold any pair, exactly: every query tile of all heads.
double count_tiles(const Pattern& pattern, const Shape& shape, TileShape tile);

}  // namespace keyhole
