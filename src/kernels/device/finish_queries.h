// src/kernels/device/finish_queries.h
// From sums of dq in blocks (query_blocks.cuh) to dq.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/entmax_backward_params.h"

namespace keyhole::device {

// params.view: the only part of the plan. dtype: that of dq, 16-bit, with rows aligned to 16 bytes
// and head_dim a multiple of 8. The scale is applied here. begins_early: see launch.h.
void launch_finish_queries(const BackwardParams& params, DType dtype, bool begins_early,
                           cudaStream_t stream);

// The same for tiled rows of entmax alone. Exits at once if there are none.
void launch_finish_tiled_queries(const BackwardParams& params, const TiledRows& tiled,
                                 const EntmaxCounters* counters, DType dtype, cudaStream_t stream);

}  // namespace keyhole::device
