// src/kernels/device/invert_lists.h
// Inverts the lists of a table on the GPU: for every key the lists that name it, ascending. Needed
// by a backward pass that scatters nothing.
#pragma once

#include <cuda_runtime_api.h>

#include "plan/view.h"

namespace keyhole::device {

// The workspace that the lists by key need. Reads no device memory.
int64_t inverted_lists_bytes(const GatherView& view);

// Queues the work and returns the view with its t_lists, stored in `memory` (256-byte aligned).
GatherView invert_lists(const GatherView& view, void* memory, cudaStream_t stream);

}  // namespace keyhole::device
