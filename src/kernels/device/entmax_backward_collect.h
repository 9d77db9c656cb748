// src/kernels/device/entmax_backward_collect.h
// Lists of the rows without a usable support: it was not given, or the row has more keys than it
// has room for. Their keys are found again, over the whole plan.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/entmax_backward_params.h"

namespace keyhole::device {

// Pairs of the queued rows, and how often these name each key, for all units that have room for
// them. Not of rows with a NaN. Exits at once if no row is queued.
void launch_entmax_backward_collect(const EntmaxBackwardParams& params, const DevicePlan& plan,
                                    BitmapLayout layout, DType dtype, bool is_in_vectors,
                                    int32_t num_processors, cudaStream_t stream);

}  // namespace keyhole::device
