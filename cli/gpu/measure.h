// cli/gpu/measure.h
// Clocks, memory and peaks of a GPU: what builds with CUDA kernels measure of one.
#pragma once

#include <cstdint>

#include "cli/bench/timing.h"
#include "keyhole/tensor.h"

namespace keyhole::bench {

// CUDA events around calls on the default stream. The GPU is kept waiting until the calls are
// queued, so that what the host needs to queue them is not in the time. With is_cold, the
// second-level cache is overwritten before each run.
Stopwatch gpu_stopwatch(const Device& device, bool is_cold);

// One call between the marks of a profiler (ncu --profile-from-start off), after one outside them.
void profile_call(const Device& device, const std::function<void()>& call);

// Watches the memory pools of a GPU: the driver's own, which tensors and the lists of plans are
// taken from, and that of workspaces (runtime/cuda/workspace_pool.h).
class MemoryWatch {
 public:
  explicit MemoryWatch(const Device& device);
  // The most that was in use at once since then, less what was in use at the beginning. The peaks
  // of the pools are added up, as if they had come together.
  int64_t extra_bytes() const;

 private:
  Device device_;
  int64_t bytes_before_ = 0;
};

// ---- what a GPU can do at most, measured now: bursts of nothing but products, and a copy of its
// own memory. A share of peak means nothing when the two were not taken in the same run ----

// Products of 16-bit numbers on tensor cores by mma.sync (m16n8k16, bf16 into fp32), from sm_80 on.
double measure_mma_gflops(const Device& device);
// The same by wgmma (m64n256k16), on GPUs of compute capability 9.0 alone, and in builds that have
// kernels of theirs (KEYHOLE_HAVE_SM90).
double measure_wgmma_gflops(const Device& device);
// Fused multiply-adds of fp32.
double measure_ffma_gflops(const Device& device);
// Bytes read plus bytes written by a copy far larger than the second-level cache, in 1e9 a second.
double measure_copy_gbps(const Device& device);

}  // namespace keyhole::bench
