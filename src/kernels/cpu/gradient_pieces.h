// src/kernels/cpu/gradient_pieces.h
// What the backward pass over tiles multiplies: a key tile with a piece of its transposed list.
#pragma once

#include "kernels/cpu/problem.h"

namespace keyhole::cpu {

inline constexpr int64_t kMostTileKeys = 64;            // of the largest tile
inline constexpr int64_t kScoreStride = kMostTileKeys;  // a row of scores of a key tile

struct KeyTile {
  int64_t unit;  // within the wave
  SpacedRows keys;
  int64_t packed_key;  // the first, among all packed keys
  int64_t cols;        // keys of the tile, whether they exist or not

  int64_t panel() const { return packed_key / kPanel; }
  int64_t col() const { return packed_key % kPanel; }  // within the panel
};

// Some neighbouring query rows.
struct QueryPiece {
  int64_t head;  // within the wave
  int32_t c;     // class
  int64_t row, rows;
};

}  // namespace keyhole::cpu
