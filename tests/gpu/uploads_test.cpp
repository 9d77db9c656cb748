// tests/gpu/uploads_test.cpp
// What a plan keeps on the GPU is bounded, and comes back when it is asked for again.
#include <memory>

#include "gpu/gpu_problem.h"
#include "gpu/pool.h"
#include "runtime/cuda/upload.h"

namespace keyhole::test {
namespace {

using Uploads = GpuTest;
constexpr int64_t kLength = kSplitLength;

ProblemSizes with_heads(int64_t heads) {
  return {.heads = heads, .q_len = kLength, .k_len = kLength};
}

// One call, waited for, of whose tensors nothing stays.
std::vector<std::byte> forward_once(const Plan& plan, int64_t heads) {
  const GpuProblem problem(with_heads(heads));
  problem.forward(plan);
  return problem.results(Operation::forward);
}

TEST_F(Uploads, APlanKeepsTheMostRecentOnes) {
  constexpr int64_t kCalls = 3 * int64_t{kMostUploads};  // each with another number of heads
  const auto fresh = [] { return plan(parse(kSplitText), kLength, kLength); };
  int64_t before = pool_bytes(), largest = 0;
  {
    const Plan made = fresh();
    forward_once(made, kCalls);
    largest = pool_bytes() - before;
    ASSERT_GT(largest, 0);
  }
  ASSERT_EQ(pool_bytes(), before) << "a plan takes its lists with it";

  auto made = std::make_unique<Plan>(fresh());
  std::vector<std::vector<std::byte>> want;
  for (int64_t heads = 1; heads <= kCalls; ++heads) {
    want.push_back(forward_once(*made, heads));
    ASSERT_LE(pool_bytes() - before, int64_t{kMostUploads} * largest) << heads << " heads";
  }
  const int64_t full = pool_bytes();
  forward_once(*made, kCalls);  // still there: nothing is copied
  EXPECT_EQ(pool_bytes(), full);
  for (const int64_t heads : {1, 2, 17}) {  // gone, and copied again
    EXPECT_TRUE(forward_once(*made, heads) == want[size_t(heads - 1)]) << heads << " heads";
  }
  made.reset();
  EXPECT_EQ(pool_bytes(), before);
}

TEST_F(Uploads, OneThatGoesWaitsForItsKernels) {
  // The large problem keeps the stream busy while later calls push the first upload out.
  constexpr int64_t kLong = 32768;
  const GpuProblem large({.heads = 16, .q_len = kLong, .k_len = kLong, .head_dim = 128});
  const Plan large_plan = plan(parse("dense"), kLong, kLong);
  const Plan made = plan(parse(kSplitText), kLength, kLength);
  const GpuProblem problem(with_heads(1));
  problem.forward(made);
  const auto want = problem.results(Operation::forward);
  problem.spoil(Operation::forward);
  std::vector<GpuProblem> others;
  for (int64_t heads = 2; heads <= 1 + int64_t{kMostUploads}; ++heads) {
    others.emplace_back(with_heads(heads));
  }
  const Stream stream, other;
  AttentionOptions options = on_stream(stream);
  synchronize(kGpu);
  large.forward(large_plan, options);
  problem.forward(made, options);
  for (const GpuProblem& pushes_out : others) pushes_out.forward(made, on_stream(other));
  EXPECT_EQ(cudaStreamQuery(stream.get()), cudaErrorNotReady)
      << "the kernels did not wait: this GPU needs a larger problem before them";
  for (int i = 0; i < 100; ++i) {  // what was given back too early would be overwritten
    void* memory = nullptr;
    const size_t bytes = size_t{1} << (10 + i % 14);
    check_cuda(cudaMallocAsync(&memory, bytes, other.get()), "taking memory");
    check_cuda(cudaMemsetAsync(memory, 0xff, bytes, other.get()), "filling memory");
    check_cuda(cudaFreeAsync(memory, other.get()), "giving memory back");
  }
  EXPECT_TRUE(problem.results(Operation::forward) == want);
}

}  // namespace
}  // namespace keyhole::test
