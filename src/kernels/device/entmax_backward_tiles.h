// src/kernels/device/entmax_backward_tiles.h
// The backward pass of entmax over tiles, for the rows whose supports are too long to be listed:
// which rows those are, and all launches around a backend's own.
//
// A row is tiled if its support is long, and at least an eighth of the rows of its query tile have
// long ones. Tiles are multiplied whole: rows of the tile that are not tiled get a base of -inf,
// against which no product has weight.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/entmax_backward_params.h"

namespace keyhole::device {

// Launches over the only part of the plan. Both exit at once unless a row is tiled.
struct EntmaxTileLaunches {
  // delta of tiled rows, and 0 of others in the same query tiles. Rows whose delta is not finite
  // are tiled no more.
  void (*delta)(const EntmaxBackwardParams& params, const TileView& view, int32_t heads_per_section,
                cudaStream_t stream);
  // Adds what tiled rows give to tiled.dq, dk_unlisted and dv_unlisted. keys: its lse2 is the base
  // of each row.
  void (*keys)(const EntmaxBackwardParams& params, const BackwardParams& keys, cudaStream_t stream);
};

// Whether a call may have tiled rows.
bool follows_tiles(const BackwardArgs& args);

// The part of params.tiled that depends on shapes and numbers alone.
TiledRows tiled_rows_of(const BackwardArgs& args);

// Before count: all of params.tiled, dq and delta of tiled rows, and their sums of dk and dv.
void run_entmax_tiles(const EntmaxBackwardParams& params, const BackwardArgs& args,
                      const EntmaxTileLaunches& launches);

}  // namespace keyhole::device
