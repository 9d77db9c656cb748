// src/kernels/device/backward_call.h
// The backward pass around a backend's own launches. Before them: delta and lse2 of every row, and
// accumulators of zeros. After them: accumulators become gradients, and rows that are not finite
// are computed again from the attended pairs alone.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/params.h"

namespace keyhole::device {

using LaunchGatherBackward = void (*)(const BackwardParams& params, const GatherView& view,
                                      cudaStream_t stream);

// Launches over one tiles part. Who makes dq, and in which order, is params.dq_order. For each
// gradient x that a launch makes:
//   sums.x null  it writes every row of x, zeros where nobody attends (of dq, `keys` only the query
//                tiles that it visits: the others are zeros before), and sets *found_nonfinite
//                when a value it stored is not finite (as stored: 70,000 in fp16 is not)
//   sums.x given it adds to sums.x, and looks at nothing; of dq in blocks (query_blocks.cuh), not
//                yet multiplied with the scale, where dq_rows_per_class is not 0
// sums are given when the plan has several parts, and where the schedule adds up in any order.
struct BackwardLaunches {
  // dk and dv by key tile, chunks of split lists to their slots; dq unless `queries` makes it.
  void (*keys)(const BackwardParams& params, cudaStream_t stream) = nullptr;
  // dq alone, by query tile: for DqOrder::by_queries.
  void (*queries)(const BackwardParams& params, cudaStream_t stream) = nullptr;
  // The gradients of a part of key lists; null: by the launches of any GPU and dtype, in a fixed
  // order (gather_backward.h).
  LaunchGatherBackward gather = nullptr;
  // Of view.bitmaps, and of view.t_bitmaps where that is not row_major.
  BitmapLayout bitmaps = BitmapLayout::row_major;
};

// Of the second-level cache, what the queries and gradients of a section may fill.
inline constexpr double kBackwardCacheShare = 0.625;

// Heads whose queries and gradients of the output share the second-level cache, and fill so much of
// it.
int32_t heads_per_section(const BackwardArgs& args, double cache_share);

// Scratch memory of run_backward_parts.
int64_t backward_workspace_bytes(const BackwardArgs& args);

// Queues the whole backward pass on args.launch.stream: dq, dk, dv and, where asked for, dsink.
void run_backward_parts(const BackwardArgs& args, const BackwardLaunches& launches);

}  // namespace keyhole::device
