// src/kernels/device/combine_keys.h
// Adds up the slots of split transposed lists: dk and dv of their keys.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/params.h"

namespace keyhole::device {

// After the launch that filled params.slots. dtype: of dk and dv.
void launch_combine_keys(const BackwardParams& params, DType dtype, cudaStream_t stream);

}  // namespace keyhole::device
