// src/kernels/device/merge.h
#pragma once

#include <cuda_runtime_api.h>

#include "keyhole/tensor.h"

namespace keyhole::device {

// Merges the result (from_out, from_lse) over other keys into (into_out, into_lse). Shapes and
// dtypes must match; f16, bf16 or f32.
void launch_merge(const TensorView& into_out, const TensorView& into_lse,
                  const TensorView& from_out, const TensorView& from_lse, cudaStream_t stream);

}  // namespace keyhole::device
