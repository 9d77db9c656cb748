// src/runtime/cuda/kept_by_graphs.h
// A CUDA graph owns what its kernels read. The graph and everything instantiated from it hold the
// plan's lists until the last of them is destroyed and none of its launches is running.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

namespace keyhole {

// May be called during the capture or later.
void keep_in_graph(cudaGraph_t graph, std::shared_ptr<void> kept);

// CUDA reports the end of a graph on a thread of its own, where CUDA calls are forbidden, so memory
// cannot be freed there. What only graphs held waits in a list, each object once. The next call
// that uses a plan frees it, on any GPU, unless that call's stream is being captured.
void free_what_graphs_left(cudaStream_t stream);

}  // namespace keyhole
