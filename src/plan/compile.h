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

// The same lists by key tile, or by key; made when a backward pass first asks.
void transpose(TileLists& lists);
void transpose(KeyLists& lists);

// Where lists came from, and whose mistake it is when they are broken: ours, or that of a file.
struct Source {
  std::string name;
  ErrorKind kind = ErrorKind::internal;
};

// What must hold of finished lists, wherever they came from. Throws the first rule they break.
void verify(const TileLists& lists, const Shape& shape, const Source& source);
void verify(const KeyLists& lists, const Shape& shape, const Source& source);

// Lists number keys, queries and tiles in 32 bits, whatever the tile shape.
inline constexpr int64_t kMaxPlanLength = INT32_MAX;
// Positions are sums of lengths and offsets; far below the ends of int64 none of them can wrap.
inline constexpr int64_t kMaxPlanOffset = int64_t{1} << 40;

// A plan larger than this is refused before the memory is taken.
inline constexpr int64_t kMaxPlanBytes = int64_t{4} << 30;

}  // namespace keyhole
