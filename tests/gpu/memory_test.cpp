// tests/gpu/memory_test.cpp
// Memory of a GPU goes when its owner goes, whichever GPU is current then, and whatever fails.
#include <atomic>
#include <utility>

#include "gpu/gpu_problem.h"
#include "gpu/pool.h"

#ifdef KEYHOLE_CAN_FAIL_COPIES
namespace {
std::atomic<bool> next_copy_fails = false;
}

// The linker puts this in the place of cudaMemcpyAsync (--wrap).
extern "C" cudaError_t __real_cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                                              cudaMemcpyKind kind, cudaStream_t stream);
extern "C" cudaError_t __wrap_cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                                              cudaMemcpyKind kind, cudaStream_t stream) {
  if (next_copy_fails.exchange(false)) return cudaErrorInvalidValue;
  return __real_cudaMemcpyAsync(to, from, bytes, kind, stream);
}
#endif

namespace keyhole::test {
namespace {

using GpuMemories = GpuTest;
constexpr int64_t kBytes = int64_t{4} << 20;

TEST_F(GpuMemories, AssignmentFreesWhatWasHeldAtOnce) {
  const int64_t before = pool_bytes();
  GpuMemory a(kGpu, kBytes), b(kGpu, 2 * kBytes);
  ASSERT_GE(pool_bytes() - before, 3 * kBytes);
  a = std::move(b);
  EXPECT_LT(pool_bytes() - before, 3 * kBytes) << "b must not keep what a held";
  EXPECT_EQ(a.bytes(), 2 * kBytes);
  EXPECT_EQ(b.bytes(), 0);
  GpuMemory& same = a;
  a = std::move(same);
  EXPECT_EQ(a.bytes(), 2 * kBytes);
  a = GpuMemory();
  EXPECT_EQ(pool_bytes(), before);
}

TEST_F(GpuMemories, FreedOnItsOwnGpu) {
  if (gpus().size() < 2) GTEST_SKIP() << "needs two GPUs";
  const int64_t before = pool_bytes();
  {
    const GpuMemory memory(kGpu, kBytes);
    check_cuda(cudaSetDevice(1), "switching to another GPU");
  }
  int current = 0;
  check_cuda(cudaGetDevice(&current), "asking for the current GPU");
  EXPECT_EQ(current, 1);
  check_cuda(cudaSetDevice(0), "switching back");
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(pool_bytes(), before);
}

TEST_F(GpuMemories, ACopyThatFailsLeavesNoListsBehind) {
#ifdef KEYHOLE_CAN_FAIL_COPIES
  const GpuProblem problem({.q_len = kSplitLength, .k_len = kSplitLength});
  const Plan made = plan(parse(kSplitText), kSplitLength, kSplitLength);
  const int64_t before = pool_bytes();
  for (int i = 0; i < 3; ++i) {
    next_copy_fails = true;
    expect_error(ErrorKind::device,
                 "while copying the lists of a plan to the GPU: invalid argument",
                 [&] { problem.forward(made); });
    ASSERT_FALSE(next_copy_fails);
    EXPECT_EQ(pool_bytes(), before);
  }
  problem.forward(made);  // and the next call copies them
  EXPECT_GT(pool_bytes(), before);
#else
  GTEST_SKIP() << "copies cannot be made to fail inside a shared libkeyhole";
#endif
}

}  // namespace
}  // namespace keyhole::test
