// cli/gpu/stopwatch.h
#pragma once

#include "cli/bench/timing.h"
#include "keyhole/tensor.h"

namespace keyhole::bench {

// CUDA events around calls on the default stream. The GPU is kept waiting until the calls are
// queued, so that what the host needs to queue them is not in the time. With is_cold, the
// second-level cache is overwritten before each run.
Stopwatch gpu_stopwatch(const Device& device, bool is_cold);

// One call between the marks of a profiler (ncu --profile-from-start off), after one outside them.
void profile_call(const Device& device, const std::function<void()>& call);

}  // namespace keyhole::bench
