// src/kernels/device/invert_lists.h
// The lists of a table by key, made on the GPU: for every key the lists that name it, ascending. A
// backward pass that scatters nothing follows them.
#pragma once

#include <cuda_runtime_api.h>

#include "plan/view.h"

namespace keyhole::device {

// What the lists by key need of a workspace. Reads no device memory.
int64_t inverted_lists_bytes(const GatherView& view);

// Queues the work and returns the view with its t_lists, which lie in `memory`, 256-byte aligned.
GatherView invert_lists(const GatherView& view, void* memory, cudaStream_t stream);

}  // namespace keyhole::device
