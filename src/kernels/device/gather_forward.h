// src/kernels/device/gather_forward.h
// The forward pass over a part of key lists, on any GPU and for every dtype that GPUs read.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/params.h"

namespace keyhole::device {

void launch_gather_forward(const GatherForwardParams& params, DType dtype, cudaStream_t stream);

}  // namespace keyhole::device
