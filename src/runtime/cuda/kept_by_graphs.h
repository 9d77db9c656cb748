// src/runtime/cuda/kept_by_graphs.h
// A CUDA graph owns what its kernels read: it and everything instantiated from it hold the plan's
// lists, until the last of them is destroyed and none of its launches is under way.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

namespace keyhole {

// While it is captured, or later.
void keep_in_graph(cudaGraph_t graph, std::shared_ptr<void> kept);

// CUDA tells of a graph's end on a thread of its own, where nobody may call CUDA: memory cannot be
// freed there. What graphs held alone waits in a list, each thing once, for the next call that
// follows a plan, on whatever GPU. Nothing is done while the stream of that call is captured.
void free_what_graphs_left(cudaStream_t stream);

}  // namespace keyhole
