// tests/gpu/graph.h
// Work captured in a CUDA graph.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <utility>

#include "gpu/gpu_problem.h"
#include "kernels/device/check_cuda.h"

namespace keyhole::test {

class Graph {
 public:
  // In the strictest mode: nothing unsafe may be called anywhere while this captures.
  Graph(const Stream& stream, const std::function<void()>& work) {
    check_cuda(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal),
               "beginning a capture");
    try {
      work();
    } catch (...) {
      cudaStreamEndCapture(stream.get(), &graph_);
      if (graph_ != nullptr) cudaGraphDestroy(graph_);
      throw;
    }
    check_cuda(cudaStreamEndCapture(stream.get(), &graph_), "ending a capture");
    check_cuda(cudaGraphInstantiate(&ready_, graph_, 0), "making a graph ready");
  }
  ~Graph() {
    cudaGraphExecDestroy(ready_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(const Stream& stream) const {
    check_cuda(cudaGraphLaunch(ready_, stream.get()), "launching a graph");
  }
  // What was captured goes; what was made of it stays.
  void keep_instance_only() {
    check_cuda(cudaGraphDestroy(std::exchange(graph_, nullptr)), "destroying a graph");
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t ready_ = nullptr;
};

}  // namespace keyhole::test
