// cli/bench/memory.h
#pragma once

#include <functional>
#include <optional>

#include "cli/bench/case.h"
#include "keyhole/attention.h"

namespace keyhole::bench {

// Starts to watch the memory of the process, or of a GPU; asked later, gives the bytes that were
// needed in between. Nothing where the system cannot tell.
std::optional<std::function<double()>> watch_memory(const Device& device);

// What the first call of a case needs besides its tensors, plan included; of a backward case the
// backward pass alone. Threads must be there already.
std::optional<double> extra_bytes(const Case& c, AttentionOptions options);

}  // namespace keyhole::bench
