// src/kernels/device/entmax_backward_long.h
// Rows by the lists that this pass has collected.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/entmax_backward_params.h"

namespace keyhole::device {

// delta, dq and the entries of all keys, of queued rows whose unit has room for their lists. Others
// are counted as alone. Exits at once if no row is queued.
void launch_entmax_backward_long(const EntmaxBackwardParams& params, DType dtype,
                                 bool is_in_vectors, int32_t num_processors, cudaStream_t stream);

}  // namespace keyhole::device
