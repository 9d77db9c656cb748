// cli/bench/memory.h
#pragma once

#include <functional>
#include <optional>

#include "keyhole/tensor.h"

namespace keyhole::bench {

// Starts to watch the memory of the process, or of a GPU; asked later, gives the bytes that were
// needed in between. Nothing where the system cannot tell.
std::optional<std::function<double()>> watch_memory(const Device& device);

}  // namespace keyhole::bench
