// src/kernels/device/forward_call.h
// The forward pass around a backend's own launch: the parts of the plan one after another, the
// scratch memory between them, split lists combined, key lists processed.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/params.h"

namespace keyhole::device {

// Scratch memory of run_forward_parts: states if the plan has several parts, slots if lists are
// split. Reads no device memory.
int64_t forward_workspace_bytes(const ForwardArgs& args);

// How many heads form a section: their keys and values fill at most cache_share of the L2 cache.
// Whole groups of query heads; at least one of batch x heads.
int32_t heads_per_section(const ForwardArgs& args, double cache_share);

// Queues one launch over a tiles part: num_heads * view.work.items_per_group work items.
using LaunchTiles = void (*)(const ForwardParams& params, cudaStream_t stream);

// Queues one launch over a part of key lists.
using LaunchGather = void (*)(const GatherForwardParams& params, cudaStream_t stream);

// Queues the whole forward pass on args.launch.stream: tiles parts first, then gather parts.
// launch_gather null: the launch for any GPU and dtype (gather_forward.h).
void run_forward_parts(const ForwardArgs& args, LaunchTiles launch_tiles,
                       LaunchGather launch_gather = nullptr);

}  // namespace keyhole::device
