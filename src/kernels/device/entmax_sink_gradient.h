// src/kernels/device/entmax_sink_gradient.h
// The gradient of the sink of each head, from delta of all its rows.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/entmax_backward_params.h"

namespace keyhole::device {

void launch_entmax_sink_gradient(const EntmaxBackwardParams& params, float* dsink,
                                 int64_t dsink_stride, cudaStream_t stream);

}  // namespace keyhole::device
