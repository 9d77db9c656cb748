// include/keyhole/workspace.h
// Scratch memory of calls on a GPU: a caller may bring it, provide it when asked, or leave it to
// the library.
#pragma once

#include <cstdint>
#include <functional>

#include "keyhole/tensor.h"

namespace keyhole {

// On the GPU of the tensors, 256-byte aligned.
struct Workspace {
  void* data = nullptr;
  int64_t bytes = 0;
};

// Provides the workspace of a call: so many bytes on the GPU of the tensors, 256-byte aligned.
//
//   options.allocate = [&](int64_t bytes) { return arena.take(bytes); };
//
// A call asks at most once, on its own thread, while that GPU is current, and only if it needs
// memory. The memory must last until the work that the call queues is done. So memory that is freed
// in the order of the call's stream may be freed as soon as the call returns. The call throws what
// the function throws, before its kernel is queued; null is an Error.
using AllocateWorkspace = std::function<void*(int64_t bytes)>;

// Gives back what no call is using of the memory pool that the library has on a GPU, as far as the
// host has waited for the calls. Does nothing on the CPU. From that pool come the workspaces of
// calls that are given neither memory nor a function. It keeps its memory: the pool of the driver
// gives free memory back whenever somebody waits for the GPU, and the next call then pays for
// having it mapped anew. Other allocations of this process can still have it, other processes
// cannot.
void release_workspaces(const Device& device);

}  // namespace keyhole
