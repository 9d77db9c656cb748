// src/kernels/device/backward_call.h
// The backward pass around a backend's own launches. Before them: delta and lse2 of every row, and
// accumulators set to zero. After them: accumulators become gradients, and rows that are not finite
// are recomputed from the attended pairs alone.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/params.h"
#include "kernels/device/span_lists.h"

namespace keyhole::device {

using LaunchGatherBackward = void (*)(const BackwardParams& params, const GatherView& view,
                                      cudaStream_t stream);

// The two launches over a chunk of lists that are cut by spans (span_lists.h): dq and the weights
// of all pairs; then dk and dv, which are added to params.sums.
using LaunchSpans = void (*)(const BackwardParams& params, const GatherView& view,
                             const SpanLists& lists, cudaStream_t stream);
struct SpanLaunches {
  LaunchSpans weights = nullptr, sums = nullptr;
};

// Launches over one tiles part. params.dq_order says which launch computes dq, and in which order.
// For each gradient x that a launch computes:
//   sums.x null   it writes every row of x, zeros where no pair attends, and sets *found_nonfinite
//                 if a value is not finite as stored (70,000 is not, in fp16). Of dq, `keys` writes
//                 only the query tiles it visits; the others are cleared before.
//   sums.x given  it adds to sums.x and checks nothing. If dq_rows_per_class is not 0, sums.dq is
//                 stored in blocks (query_blocks.cuh), not yet multiplied by the scale.
// sums are given if the plan has several parts, or if several CTAs add to the same gradient.
struct BackwardLaunches {
  // dk and dv by key tile; chunks of split lists go to their slots. Also dq, unless `queries`
  // computes it.
  void (*keys)(const BackwardParams& params, cudaStream_t stream) = nullptr;
  // dq alone, by query tile: for DqOrder::by_queries.
  void (*queries)(const BackwardParams& params, cudaStream_t stream) = nullptr;
  // The gradients of a part of key lists. Null: the launches for any GPU and dtype, in a fixed
  // order (gather_backward.h).
  LaunchGatherBackward gather = nullptr;
  // The same, if the schedule asks for spans.
  SpanLaunches spans = {};
  // Whether `keys` begins early (launch.h). Then the end of dq and the exact path do so, too.
  bool begin_early = false;
  // The layout of view.bitmaps, and of view.t_bitmaps unless that is row_major.
  BitmapLayout bitmaps = BitmapLayout::row_major;
};

// The share of the L2 cache that the queries and gradients of a section may fill.
inline constexpr double kBackwardCacheShare = 0.625;

// How many heads form a section: their queries and output gradients together fill cache_share of
// the L2 cache.
int32_t heads_per_section(const BackwardArgs& args, double cache_share);

// Rows per residue class in sums of dq that are stored in blocks (query_blocks.cuh); 0: they are
// stored in rows.
int64_t dq_rows_per_class(const BackwardArgs& args);

// Scratch memory of run_backward_parts.
int64_t backward_workspace_bytes(const BackwardArgs& args);

// Queues the whole backward pass on args.launch.stream: dq, dk, dv and, if asked for, dsink.
void run_backward_parts(const BackwardArgs& args, const BackwardLaunches& launches);

}  // namespace keyhole::device
