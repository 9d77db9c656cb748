// tests/gpu/reset_test.cpp
// cudaDeviceReset() takes all memory of a process, and what the driver was told of kernels. Calls
// after it work: plans are copied again, kernels are announced again, and nothing is freed twice.
// Each test is a process of its own, because nobody else's memory would survive it.
#include <optional>
#include <thread>

#include "gpu/gpu_problem.h"
#include "gpu/own_process.h"
#include "gpu/pool.h"
#include "kernels/device/gpu_context.h"

namespace keyhole::test {
namespace {

using ResetDeathTest = GpuDeathTest;
constexpr int64_t kLength = kSplitLength;

void reset() { check_cuda(cudaDeviceReset(), "resetting the GPU"); }

std::vector<std::byte> results_of(const KernelEntry& kernel, const Plan& plan) {
  const GpuProblem problem(sizes_for(kernel, kLength));
  if (kernel.operation == Operation::backward) problem.forward(plan);
  queue(kernel, plan, problem);
  return problem.results(kernel.operation);
}

// Of every kernel there is, with plans of tiles and of key lists.
std::vector<std::vector<std::byte>> all_results(const std::vector<Plan>& plans) {
  std::vector<std::vector<std::byte>> all;
  for (const Operation operation : {Operation::forward, Operation::backward}) {
    for (const KernelEntry* kernel : gpu_kernels(operation)) {
      for (const Plan& plan : plans) all.push_back(results_of(*kernel, plan));
    }
  }
  return all;
}

void every_kernel_works_again() {
  std::vector<Plan> plans;
  for (const char* text : {kSplitText, kTwoPartsText, "random(1, 16, 3)"}) {
    plans.push_back(plan(parse(text), kLength, kLength));
  }
  const auto want = all_results(plans);
  for (int i = 0; i < 2; ++i) {
    reset();
    EXPECT_TRUE(all_results(plans) == want) << "reset " << i;
  }
}
TEST_F(ResetDeathTest, EveryKernelWorksAgain) { expect_in_own_process(every_kernel_works_again); }

void no_context_has_the_id_of_another() {
  const uint64_t first = device::current_context();
  EXPECT_NE(first, 0u);
  EXPECT_EQ(device::current_context(), first);
  uint64_t of_thread = 0, in_destructor = 0;
  std::thread([&] {
    in_destructor = device::living_context(kGpu.ordinal);
    of_thread = device::current_context();
  }).join();
  EXPECT_EQ(of_thread, first);
  EXPECT_EQ(in_destructor, first);
  reset();
  EXPECT_EQ(device::living_context(kGpu.ordinal), 0u) << "and asking does not begin one";
  const GpuMemory memory(kGpu, 1024);
  const uint64_t second = device::current_context();
  EXPECT_NE(second, 0u);
  EXPECT_NE(second, first);
}
TEST_F(ResetDeathTest, NoContextHasTheIdOfAnother) {
  expect_in_own_process(no_context_has_the_id_of_another);
}

void the_dead_are_not_freed_again() {
  const auto fresh = [] { return std::optional(plan(parse(kSplitText), kLength, kLength)); };
  std::optional<Plan> goes_at_once = fresh(), goes_later = fresh();
  std::optional<GpuMemory> memory_at_once, memory_later;
  memory_at_once.emplace(kGpu, int64_t{1} << 20);
  memory_later.emplace(kGpu, int64_t{1} << 20);
  std::vector<std::byte> want;
  {
    const GpuProblem problem({.q_len = kLength, .k_len = kLength});
    const Stream stream;  // one that plans leave an event on
    for (const std::optional<Plan>* plan : {&goes_at_once, &goes_later}) {
      problem.forward(**plan, on_stream(stream));
      problem.forward(**plan);
    }
    want = problem.results(Operation::forward);
  }
  reset();
  goes_at_once.reset();  // there is no context at all
  memory_at_once.reset();

  // What now lies where the dead lay must stay.
  const Plan other = plan(parse(kSplitText), kLength, kLength);
  const GpuProblem problem({.q_len = kLength, .k_len = kLength});
  problem.forward(other);
  EXPECT_TRUE(problem.results(Operation::forward) == want);
  const int64_t before = pool_bytes();
  goes_later.reset();
  memory_later.reset();
  EXPECT_EQ(pool_bytes(), before);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  problem.spoil(Operation::forward);
  problem.forward(other);
  EXPECT_TRUE(problem.results(Operation::forward) == want);
}
TEST_F(ResetDeathTest, TheDeadAreNotFreedAgain) {
  expect_in_own_process(the_dead_are_not_freed_again);
}

}  // namespace
}  // namespace keyhole::test
