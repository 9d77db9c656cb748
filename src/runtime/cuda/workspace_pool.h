// src/runtime/cuda/workspace_pool.h
// The memory pool of a GPU that workspaces come from where the caller gives none. The driver's own
// pool gives free memory back at every synchronisation and maps it anew for the next call, which
// costs a training loop that looks at its loss a quarter of a backward pass. This pool keeps its
// memory. It is not the driver's own with another threshold: others in the process use that one.
#pragma once

#include <cuda_runtime_api.h>

namespace keyhole {

// Of the current GPU: made on first use, and anew after cudaDeviceReset(). In a stream capture the
// memory belongs to the graph, and the pool only says of what kind it is.
cudaMemPool_t workspace_pool();

}  // namespace keyhole
