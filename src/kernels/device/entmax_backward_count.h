// src/kernels/device/entmax_backward_count.h
// Room for what the rows give to their keys: how many rows list each key, and where its entries go.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/entmax_backward_params.h"

namespace keyhole::device {

// Both expect what is to be cleared before the launches to be 0.
// Gives is_alone, the queue of rows without a usable support, and count and listed of all others.
// Rows that stay tiled are in neither.
void launch_entmax_backward_count(const EntmaxBackwardParams& params, cudaStream_t stream);
// Adds what the collected lists name to count. Gives end and the busy keys.
void launch_entmax_backward_room(const EntmaxBackwardParams& params, cudaStream_t stream);

}  // namespace keyhole::device
