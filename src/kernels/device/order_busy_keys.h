// src/kernels/device/order_busy_keys.h
// The entries of busy keys in ascending order of their rows: KeyEntry::order.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/entmax_backward_params.h"

namespace keyhole::device {

void order_busy_keys(const EntmaxBackwardParams& params, int32_t num_processors,
                     cudaStream_t stream);

}  // namespace keyhole::device
