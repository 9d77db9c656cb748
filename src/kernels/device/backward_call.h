// src/kernels/device/backward_call.h
// The backward pass around a backend's own launches. Before them: delta and lse2 of every row, and
// accumulators of zeros. After them: accumulators become gradients, and rows that are not finite
// are computed again from the attended pairs alone.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/params.h"

namespace keyhole::device {

// Launches over one tiles part. For each gradient x that a launch makes:
//   sums.x null  it writes every row of x, zeros where nobody attends (of dq, `keys` only the query
//                tiles that it visits: the others are zeros before), and sets *found_nonfinite
//                when a value it stored is not finite (as stored: 70,000 in fp16 is not)
//   sums.x given it adds to sums.x, and looks at nothing
// sums are given when the plan has several parts, and where the launches ask for them.
struct BackwardNeeds {
  bool queries_in_sums = false;  // `keys` makes dq too, by atomic addition
  // It can add to sums.dq in blocks (query_blocks.cuh), not yet multiplied with the scale: does so
  // where dq_rows_per_class is not 0.
  bool queries_in_blocks = false;
  // It can also write dq itself: does so, and sums.dq is null, where the plan visits no query tile
  // twice.
  bool writes_queries = false;
  // `keys` follows one query head per CTA, and several of them share a kv head.
  bool keys_in_sums = false;
  // `keys` follows work items: the chunks of a split list store their sums in slots, which are
  // added in order afterwards. false: it follows whole lists.
  bool keys_in_chunks = false;
  bool gather_in_sums = false;  // `gather` makes dk and dv by atomic addition
};
struct BackwardLaunches {
  // dk and dv by key tile; also dq when `queries` is null, by atomic addition to sums.dq or, where
  // that is null, in place.
  void (*keys)(const BackwardParams& params, cudaStream_t stream) = nullptr;
  // dq alone, by query tile; null: `keys` makes it.
  void (*queries)(const BackwardParams& params, cudaStream_t stream) = nullptr;
  // The gradients of a part of key lists; null: by the launches of any GPU and dtype
  // (gather_backward.h).
  void (*gather)(const BackwardParams& params, const GatherView& view,
                 cudaStream_t stream) = nullptr;
  BackwardNeeds needs = {};
  // Of view.bitmaps, and of view.t_bitmaps where that is not row_major.
  BitmapLayout bitmaps = BitmapLayout::row_major;
};

// Of the second-level cache, what the queries and gradients of a section may fill.
inline constexpr double kBackwardCacheShare = 0.625;

// Heads whose queries and gradients of the output share the second-level cache, and fill so much of
// it.
int32_t heads_per_section(const BackwardArgs& args, double cache_share);

// Whether a backward pass visits each query tile in one step at most: the plan is one part of
// tiles, and no query tile attends to two key tiles.
bool visits_queries_once(const PlanView& plan);

// Scratch memory of run_backward_parts.
int64_t backward_workspace_bytes(const BackwardArgs& args, const BackwardNeeds& needs);

// Queues the whole backward pass on args.launch.stream: dq, dk, dv and, where asked for, dsink.
void run_backward_parts(const BackwardArgs& args, const BackwardLaunches& launches);

}  // namespace keyhole::device
