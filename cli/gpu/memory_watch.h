// cli/gpu/memory_watch.h
#pragma once

#include <cstdint>

#include "keyhole/tensor.h"

namespace keyhole::bench {

// Watches the driver's memory pool of a GPU, which tensors, the lists of plans and workspaces are
// taken from.
class MemoryWatch {
 public:
  explicit MemoryWatch(const Device& device);
  // The most that was in use at once since then, less what was in use at the beginning.
  int64_t extra_bytes() const;

 private:
  Device device_;
  int64_t bytes_before_ = 0;
};

}  // namespace keyhole::bench
