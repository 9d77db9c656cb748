// src/kernels/sm80/gather_launch.h
// Parts of key lists on tensor cores, for one padded head_dim each (64, 96, 128, 192, 256); T is
// __half or __nv_bfloat16. Compiled in gather_bf16.cu and gather_f16.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/params.h"

namespace keyhole::sm80 {

template <class T, int kHeadDim>
void launch_gather_forward(const device::GatherForwardParams& params, cudaStream_t stream);

// Adds to params.sums.dk and .dv, which must be given, in no fixed order; writes or adds to dq as
// BackwardLaunches has it. No softcap.
template <class T, int kHeadDim>
void launch_gather_backward(const device::BackwardParams& params, const GatherView& view,
                            cudaStream_t stream);

}  // namespace keyhole::sm80
