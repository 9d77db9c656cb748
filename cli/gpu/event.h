// cli/gpu/event.h
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/check_cuda.h"

namespace keyhole::bench {

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

}  // namespace keyhole::bench
