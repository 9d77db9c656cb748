// src/kernels/device/gather_backward.h
// The backward pass over a part of key lists, for any GPU, any dtype and head_dim up to 576: dq by
// query from its list of keys, dk and dv by key from the list of queries that attend to it. Nothing
// is scattered: the same bits every time.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/params.h"

namespace keyhole::device {

// Writes every row of dq, dk and dv, or adds to params.sums where given (see BackwardLaunches).
// params.view is not read.
void launch_gather_backward(const BackwardParams& params, const GatherView& view, DType dtype,
                            cudaStream_t stream);

}  // namespace keyhole::device
