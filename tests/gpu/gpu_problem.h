// tests/gpu/gpu_problem.h
// Attention problems whose tensors lie on a GPU, the kernels that can take them, and streams. What
// only holds on a GPU is tested with these; agreement with the reference is tests/kernels' matter.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/contract.h"
#include "kernels/device/check_cuda.h"
#include "keyhole/attention.h"
#include "runtime/gpu.h"
#include "runtime/gpu_memory.h"

namespace keyhole::test {

inline constexpr Device kGpu{Device::Kind::cuda, 0};

// At this length the first pattern has a list that is cut into chunks, in tiles of every shape up
// to 128x128, and the second has two parts: both passes need a workspace for either.
inline constexpr int64_t kSplitLength = 3300;
inline constexpr const char* kSplitText = "global(3) | window(100)";
inline constexpr const char* kTwoPartsText = "strided(64)";

// Skips its tests aloud where there is no GPU.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (gpus().empty()) GTEST_SKIP() << why_no_gpu();
    // Creates a context: the library's first question for one fails, and memcheck reports that.
    check_cuda(cudaSetDevice(kGpu.ordinal), "choosing the GPU");
  }
};

class GpuTensor {
 public:
  GpuTensor() = default;
  GpuTensor(DType dtype, std::initializer_list<int64_t> shape);

  const TensorView& view() const { return view_; }
  int64_t bytes() const { return memory_.bytes(); }
  // These work in the order of the default stream, and wait only where they read.
  void draw(Random& random) const;  // a long tensor repeats its numbers, never at the same row
  void write(const std::vector<float>& numbers) const;
  void fill(int byte) const { memory_.fill(byte); }
  std::vector<float> read(int64_t first, int64_t count) const;
  std::vector<float> read() const { return read(0, view_.num_elements()); }

 private:
  GpuMemory memory_;
  TensorView view_;
};

struct ProblemSizes {
  int64_t heads = 2, kv_heads = 1;
  int64_t q_len = 0, k_len = 0;
  int64_t head_dim = 64;
  DType dtype = DType::bf16;
  bool has_sink = true;
};

// Every function here waits for the GPU before it returns, so that work may be queued on any
// stream.
struct GpuProblem {
  GpuTensor q, k, v, dout, sink;
  GpuTensor out, lse, dq, dk, dv, dsink;

  explicit GpuProblem(const ProblemSizes& sizes, uint64_t seed = 1);
  void draw(uint64_t seed) const;  // other inputs in the same places

  // out, lse; or dq, dk, dv, dsink.
  std::vector<const GpuTensor*> outputs(Operation operation) const;
  void spoil(Operation operation) const;  // fills them with NaN
  std::vector<std::byte> results(Operation operation) const;

  // The public API with this problem's sink. Queued, not waited for.
  void forward(const Lists& lists, AttentionOptions options = {}) const;
  void backward(const Lists& lists, AttentionOptions options = {}) const;
  int64_t forward_workspace(const Lists& lists, AttentionOptions options = {}) const;
  int64_t backward_workspace(const Lists& lists, AttentionOptions options = {}) const;
};

// What a kernel receives, but for the plan; the backward pass is deterministic.
ForwardArgs forward_args(const GpuProblem& problem, const Launch& launch);
BackwardArgs backward_args(const GpuProblem& problem, const Launch& launch);

// The kernels of the table for GPUs, those that cannot run here left out with a printed reason.
std::vector<const KernelEntry*> gpu_kernels(Operation operation);
// The backends among them that take a dtype.
std::vector<std::string> gpu_backends(Operation operation, DType dtype);
// Sizes that a kernel was made for.
ProblemSizes sizes_for(const KernelEntry& kernel, int64_t length);

// One kernel of the table on a problem; a backward pass is deterministic, and takes the problem's
// out and lse as they are. Queued, not waited for.
void queue(const KernelEntry& kernel, const Plan& plan, const GpuProblem& problem,
           const Launch& launch = {});
int64_t workspace_bytes(const KernelEntry& kernel, const Plan& plan, const GpuProblem& problem,
                        const Launch& launch = {});
// The schedule of such a backward pass.
BackwardSchedule queued_schedule(const KernelEntry& kernel, const Plan& plan,
                                 const GpuProblem& problem);

// A stream that does not wait for the default stream.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

AttentionOptions by_backend(const std::string& backend);
// The same for the forward pass before a backward pass: a backend may have only the latter.
AttentionOptions for_forward(AttentionOptions options);
// Deterministic, as all that is compared bit by bit.
AttentionOptions on_stream(const Stream& stream);

void expect_error(ErrorKind kind, const std::string& text, const std::function<void()>& action);

}  // namespace keyhole::test
