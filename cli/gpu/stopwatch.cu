// cli/gpu/stopwatch.cu
// Clocks of a GPU, and the watch on its memory pools.
#include <cuda_profiler_api.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>

#include "cli/gpu/measure.h"
#include "kernels/device/check_cuda.h"
#include "runtime/cuda/call.h"  // OnGpu
#include "runtime/gpu.h"
#include "runtime/gpu_memory.h"

namespace keyhole::bench {
namespace {

// One thread that counts cycles. The clock runs, so that it ends.
__global__ void wait_cycles(int64_t cycles) {
  const int64_t begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

// A mark in the default stream of the GPU that is current when it is made.
class Event {
 public:
  Event() { check_cuda(cudaEventCreate(&event_), "making an event"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record() const { check_cuda(cudaEventRecord(event_, nullptr), "recording an event"); }
  // Waits for this one.
  float ms_since(const Event& begin) const {
    check_cuda(cudaEventSynchronize(event_), "waiting for a timed call");
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, begin.event_, event_), "reading a clock of the GPU");
    return ms;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

class GpuClock {
 public:
  GpuClock(const Device& device, bool is_cold) : device_(device) {
    const OnGpu here(device.ordinal);  // events belong to the GPU they are made on
    begin_.emplace(), end_.emplace();
    // Twice the cache: what is in it is gone, whatever it keeps by preference.
    if (is_cold) flushed_ = GpuMemory(device, 2 * gpu(device).l2_cache_bytes);
  }

  double time(const std::function<void()>& call, int times) {
    const OnGpu here(device_.ordinal);
    flushed_.fill(0);  // nothing when it has no bytes
    const double wait_s = std::min(kLongestWaitS, kMargin * times * queueing_s_);
    wait_cycles<<<1, 1>>>(int64_t(wait_s * kFastestHz));
    check_cuda(cudaGetLastError(), "keeping the GPU waiting");
    begin_->record();
    const double start = now_s();
    for (int i = 0; i < times; ++i) call();
    // The first call also compiles and copies the plan: that is not what queueing takes.
    queueing_s_ = std::min(kLongestQueueingS, (now_s() - start) / times);
    end_->record();
    return end_->ms_since(*begin_);
  }

 private:
  static constexpr double kFastestHz = 2.5e9;          // no GPU's clock is faster
  static constexpr double kLongestQueueingS = 200e-6;  // of one call
  static constexpr double kLongestWaitS = 5e-3;
  static constexpr double kMargin = 1.5;  // the next run may be slower to queue than the last one

  Device device_;
  std::optional<Event> begin_, end_;
  GpuMemory flushed_;
  double queueing_s_ = 50e-6;
};

constexpr const char* kDoing = "asking for the memory in use";

// Of tensors and the lists of plans, and of workspaces.
std::array<cudaMemPool_t, 2> pools_of(const Device& device) {
  const OnGpu here(device.ordinal);
  cudaMemPool_t drivers = nullptr;
  check_cuda(cudaDeviceGetDefaultMemPool(&drivers, device.ordinal), kDoing);
  return {drivers, workspace_pool()};
}

int64_t bytes_of(const Device& device, cudaMemPoolAttr which) {
  int64_t sum = 0;
  for (cudaMemPool_t pool : pools_of(device)) {
    uint64_t bytes = 0;
    check_cuda(cudaMemPoolGetAttribute(pool, which, &bytes), kDoing);
    sum += int64_t(bytes);
  }
  return sum;
}

}  // namespace

Stopwatch gpu_stopwatch(const Device& device, bool is_cold) {
  const auto clock = std::make_shared<GpuClock>(device, is_cold);
  return [clock](const std::function<void()>& call, int times) { return clock->time(call, times); };
}

void profile_call(const Device& device, const std::function<void()>& call) {
  const OnGpu here(device.ordinal);
  call();
  synchronize(device);
  check_cuda(cudaProfilerStart(), "profiling");
  call();
  synchronize(device);
  check_cuda(cudaProfilerStop(), "profiling");
}

MemoryWatch::MemoryWatch(const Device& device) : device_(device) {
  synchronize(device);  // what is being freed is not in use
  for (cudaMemPool_t pool : pools_of(device)) {
    uint64_t anew = 0;  // the mark falls to what is in use now
    check_cuda(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &anew), kDoing);
  }
  bytes_before_ = bytes_of(device, cudaMemPoolAttrUsedMemCurrent);
}

int64_t MemoryWatch::extra_bytes() const {
  return std::max<int64_t>(0, bytes_of(device_, cudaMemPoolAttrUsedMemHigh) - bytes_before_);
}

}  // namespace keyhole::bench
