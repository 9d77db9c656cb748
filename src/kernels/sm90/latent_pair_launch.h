// src/kernels/sm90/latent_pair_launch.h
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/params.h"

namespace keyhole::sm90 {

// One part of key lists in latent form, by clusters of two CTAs with up to 128 heads. T: __half or
// __nv_bfloat16.
template <class T>
void launch_latent_pair_forward(const device::GatherForwardParams& p, cudaStream_t stream);

}  // namespace keyhole::sm90
