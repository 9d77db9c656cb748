// python/bindings/torch_memory.h
// Memory of torch's allocators, for results and for workspaces. It is allocated by the functions
// that torch's compiled graphs use, which run no Python code.
#pragma once

#include <nanobind/nanobind.h>

#include "keyhole/tensor.h"
#include "keyhole/workspace.h"

namespace keyhole::python {

// An uninitialised tensor. Null where torch has no such function for the device: not in every
// release, and for no GPU but the current one.
nanobind::object empty_tensor(const Device& device, const int64_t (&shape)[4],
                              const int64_t (&strides)[4], nanobind::handle dtype);

// The workspace of one call, if the call asks for one. torch keeps freed memory for the next call,
// and counts it with its own; in a CUDA graph it belongs to the graph. It is memory of the current
// stream, and free for what torch queues there next as soon as this goes.
class TorchWorkspace {
 public:
  // For a call on q, and so where q is.
  explicit TorchWorkspace(const TensorView& q) : device_(q.device) {}
  TorchWorkspace(const TorchWorkspace&) = delete;
  TorchWorkspace& operator=(const TorchWorkspace&) = delete;

  // Nothing on the CPU, and if torch has not been imported. Else a function that points to this and
  // takes the GIL.
  AllocateWorkspace allocator();

 private:
  void* allocate(int64_t bytes);

  Device device_;
  nanobind::object tensor_;
};

}  // namespace keyhole::python
