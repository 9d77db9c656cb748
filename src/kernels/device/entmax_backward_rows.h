// src/kernels/device/entmax_backward_rows.h
// By the support of a row: delta, dq, and what the row gives to each of its keys.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/entmax_backward_params.h"

namespace keyhole::device {

// Rows whose support is usable, and rows without weights, whose dq is 0.
void launch_entmax_backward_rows(const EntmaxBackwardParams& params, DType dtype,
                                 bool is_in_vectors, cudaStream_t stream);

}  // namespace keyhole::device
