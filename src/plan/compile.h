// src/plan/compile.h
// From a part and a tile shape to tile lists; from a part to key lists.
#pragma once

#include <cstdint>
#include <string>

#include "keyhole/error.h"
#include "plan/lists.h"
#include "plan/split_parts.h"

namespace keyhole {

TileLists compile_tiles(const PartSpec& part, const Shape& shape, TileShape tile);
KeyLists compile_keys(const PartSpec& part, const Shape& shape);

// The same lists by key tile, or by key; built when a backward pass first needs them.
void transpose(TileLists& lists);
void transpose(KeyLists& lists);

// Where lists came from. It decides whose mistake a broken list is: ours, or that of a file.
struct Source {
  std::string name;
  ErrorKind kind = ErrorKind::internal;
};

// The invariants of finished lists, whatever their source. Throws at the first violation.
void verify(const TileLists& lists, const Shape& shape, const Source& source);
void verify(const KeyLists& lists, const Shape& shape, const Source& source);

// Lists use 32-bit indices for keys, queries and tiles, whatever the tile shape.
inline constexpr int64_t kMaxPlanLength = INT32_MAX;
// Positions are sums of lengths and offsets: below this none of them can overflow int64.
inline constexpr int64_t kMaxPlanOffset = int64_t{1} << 40;

// A larger plan is refused before its memory is allocated.
inline constexpr int64_t kMaxPlanBytes = int64_t{4} << 30;

}  // namespace keyhole
