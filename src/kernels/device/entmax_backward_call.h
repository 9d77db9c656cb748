// src/kernels/device/entmax_backward_call.h
// The backward pass of entmax and top_k on any GPU: all its launches, for every backend. It follows
// the support of each row, which the forward pass wrote. Rows without one get a list first, where
// there is memory for it; the rest is followed over the whole plan, which is slow.
#pragma once

#include "kernels/contract.h"

namespace keyhole::device {

struct EntmaxListLaunches;
struct EntmaxTileLaunches;  // entmax_backward_tiles.h

// How the pass adds up gradients, for every tile, in backends without launches over tiles.
inline BackwardSchedule entmax_schedule(const Request& request, const TileShape& /*tile*/) {
  return {.key_lists = request.deterministic ? KeyListOrder::by_key : KeyListOrder::atomic};
}

// Scratch memory of run_entmax_backward.
int64_t entmax_backward_workspace_bytes(const BackwardArgs& args);

// Queues the whole pass on args.launch.stream: dq, dk, dv and, if asked for, dsink. layout: of the
// bitmaps of args.plan. With schedule.key_lists by key, results have the same bits every time. With
// schedule.dq atomic, tile_launches must be given: long rows may be followed over tiles.
// list_launches: null: those of every GPU.
void run_entmax_backward(const BackwardArgs& args, BitmapLayout layout,
                         const EntmaxListLaunches* list_launches = nullptr,
                         const EntmaxTileLaunches* tile_launches = nullptr);

}  // namespace keyhole::device
