// tests/gpu/determinism_test.cpp
// The forward pass and the deterministic backward pass give the same bits a thousand times,
// whatever else the GPU is doing, with lists cut into chunks and with plans of several parts.
#include <cstring>
#include <iostream>

#include "gpu/gpu_problem.h"
#include "support/scale.h"

namespace keyhole::test {
namespace {

using GpuDeterminism = GpuTest;
constexpr int64_t kLength = kSplitLength;

// Results on the host, in page-locked memory: a thousand copies then take a second.
class Landing {
 public:
  explicit Landing(const std::vector<const GpuTensor*>& tensors) : tensors_(tensors) {
    for (const GpuTensor* tensor : tensors) bytes_ += size_t(tensor->bytes());
    check_cuda(cudaMallocHost(&memory_, bytes_), "taking page-locked memory");
  }
  ~Landing() { cudaFreeHost(memory_); }
  Landing(const Landing&) = delete;
  Landing& operator=(const Landing&) = delete;

  void fetch() {
    auto* to = static_cast<std::byte*>(memory_);
    for (const GpuTensor* tensor : tensors_) {
      check_cuda(cudaMemcpyAsync(to, tensor->view().data, size_t(tensor->bytes()),
                                 cudaMemcpyDeviceToHost, nullptr),
                 "copying from the GPU");
      to += tensor->bytes();
    }
    check_cuda(cudaStreamSynchronize(nullptr), "copying from the GPU");
  }
  bool operator==(const Landing& other) const {
    return std::memcmp(memory_, other.memory_, bytes_) == 0;
  }

 private:
  std::vector<const GpuTensor*> tensors_;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

// Other work on another stream, now and then: CTAs are then dealt out in another order.
class Disturbance {
 public:
  void queue() const { problem_.forward(plan_, on_stream(stream_)); }

 private:
  GpuProblem problem_{{.heads = 8, .q_len = 2048, .k_len = 2048}, 99};
  Plan plan_ = plan(parse("causal"), 2048, 2048);
  Stream stream_;
};

void repeat(Operation operation) {
  const Disturbance disturbance;
  const int64_t repeats = scaled(1000);
  for (const KernelEntry* kernel : gpu_kernels(operation)) {
    for (const char* text : {kSplitText, kTwoPartsText}) {
      const GpuProblem problem(sizes_for(*kernel, kLength));
      const Plan made = plan(parse(text), kLength, kLength);
      problem.forward(made);
      if (operation == Operation::forward) {  // partial results, or states between parts
        EXPECT_GT(workspace_bytes(*kernel, made, problem), 0) << kernel->name << ", " << text;
      }
      queue(*kernel, made, problem);
      Landing first(problem.outputs(operation)), again(problem.outputs(operation));
      first.fetch();
      for (int64_t i = 0; i < repeats; ++i) {
        if (i % 7 == 0) disturbance.queue();
        for (const GpuTensor* tensor : problem.outputs(operation)) tensor->fill(0xff);
        queue(*kernel, made, problem);
        again.fetch();
        if (first == again) continue;
        ADD_FAILURE() << kernel->name << ", " << text << ": repeat " << i << " has other bits";
        break;
      }
      synchronize(kGpu);
    }
    std::cout << kernel->name << ": " << repeats << " repeats each of two patterns\n";
  }
}

TEST_F(GpuDeterminism, AThousandForwardPassesAreEqual) { repeat(Operation::forward); }
TEST_F(GpuDeterminism, AThousandDeterministicBackwardPassesAreEqual) {
  repeat(Operation::backward);
}

}  // namespace
}  // namespace keyhole::test
