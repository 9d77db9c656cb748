// cli/gpu/no_cuda.cpp
// The clocks and peaks of a GPU in a build without CUDA kernels: gpu() refuses, with the reason.
#ifndef KEYHOLE_HAVE_CUDA

#include "cli/gpu/measure.h"
#include "runtime/gpu.h"

namespace keyhole::bench {
namespace {

[[noreturn]] void refuse(const Device& device) {
  gpu(device);
  std::abort();  // gpu() throws
}

}  // namespace

Stopwatch gpu_stopwatch(const Device& device, bool) { refuse(device); }
void profile_call(const Device& device, const std::function<void()>&) { refuse(device); }
double measure_mma_gflops(const Device& device) { refuse(device); }
double measure_ffma_gflops(const Device& device) { refuse(device); }
double measure_copy_gbps(const Device& device) { refuse(device); }
MemoryWatch::MemoryWatch(const Device& device) : device_(device) { refuse(device); }
int64_t MemoryWatch::extra_bytes() const { refuse(device_); }

}  // namespace keyhole::bench

#endif  // KEYHOLE_HAVE_CUDA
