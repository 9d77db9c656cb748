// src/kernels/device/combine.h
// Combines the partial results of split lists and finishes their rows.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/params.h"

namespace keyhole::device {

// After the launch that filled params.slots. dtype: of out.
void launch_combine(const ForwardParams& params, DType dtype, cudaStream_t stream);

}  // namespace keyhole::device
