// src/kernels/device/entmax_backward_alone.h
// Rows without a list: those with a NaN, and those without a usable support whose unit has no room
// for their lists. Their keys are found again, over the whole plan.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/entmax_backward_params.h"

namespace keyhole::device {

// delta and dq of such rows, and dk_unlisted and dv_unlisted of all keys. Exits at once if there
// are no such rows.
void launch_entmax_backward_alone(const EntmaxBackwardParams& params, const DevicePlan& plan,
                                  BitmapLayout layout, DType dtype, bool is_in_vectors,
                                  int32_t num_processors, cudaStream_t stream);

}  // namespace keyhole::device
