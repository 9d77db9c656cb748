// src/kernels/device/entmax_backward_keys.h
// dk and dv from the entries that the rows have left for each key, and from the sums over rows that
// left none.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/entmax_backward_params.h"

namespace keyhole::device {

void launch_entmax_backward_keys(const EntmaxBackwardParams& params, DType dtype,
                                 bool is_in_vectors, int32_t num_processors, cudaStream_t stream);

}  // namespace keyhole::device
