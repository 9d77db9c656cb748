// src/kernels/sm80/gather_launch.h
// Parts of key lists on tensor cores, for one padded head_dim each (64, 96, 128, 192, 256); T is
// __half or __nv_bfloat16. Compiled in gather_forward_*.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/params.h"

namespace keyhole::sm80 {

template <class T, int kHeadDim>
void launch_gather_forward(const device::GatherForwardParams& params, cudaStream_t stream);

}  // namespace keyhole::sm80
