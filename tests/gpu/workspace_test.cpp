// tests/gpu/workspace_test.cpp
// Who provides the workspace of a call: the caller's function, which is asked once, or the
// library's pool, which keeps its memory when somebody waits for the GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "gpu/gpu_problem.h"
#include "gpu/graph.h"
#include "gpu/own_process.h"
#include "gpu/pool.h"
#include "support/select_checks.h"

namespace keyhole::test {
namespace {

using GpuWorkspaces = GpuTest;
constexpr int64_t kLength = kSplitLength;

// Provides memory of its own, and notes what it is asked for.
class Provider {
 public:
  AllocateWorkspace function() {
    return [this](int64_t bytes) {
      asked_.push_back(bytes);
      memory_.emplace_back(kGpu, bytes).fill(0xff);  // on the default stream
      synchronize(kGpu);
      return memory_.back().data();
    };
  }
  const std::vector<int64_t>& asked() const { return asked_; }

 private:
  std::vector<int64_t> asked_;
  std::vector<GpuMemory> memory_;
};

// The most that the workspace pool has in use while this lives.
class PoolPeak {
 public:
  PoolPeak() {
    synchronize(kGpu);
    uint64_t anew = 0;
    check_cuda(cudaMemPoolSetAttribute(workspace_pool(), cudaMemPoolAttrUsedMemHigh, &anew),
               "resetting the peak of a pool");
  }
  int64_t bytes() const { return pool_attribute(workspace_pool(), cudaMemPoolAttrUsedMemHigh); }
};

int64_t reserved_bytes() {
  synchronize(kGpu);
  return pool_attribute(workspace_pool(), cudaMemPoolAttrReservedMemCurrent);
}

struct Subject {
  Operation operation;
  GpuProblem problem;
  Plan made;
  AttentionOptions options;

  Subject(Operation o, const char* text, const std::string& backend)
      : operation(o),
        problem({.q_len = kLength, .k_len = kLength}),
        made(plan(parse(text), kLength, kLength)),
        options(by_backend(backend)) {
    options.deterministic = true;
    problem.forward(made, for_forward(options));  // what a backward pass reads
  }
  void run(const AttentionOptions& how) const {
    problem.spoil(operation);
    operation == Operation::forward ? problem.forward(made, how) : problem.backward(made, how);
  }
  std::vector<std::byte> results(const AttentionOptions& how) const {
    run(how);
    return problem.results(operation);
  }
  int64_t bytes() const {
    return operation == Operation::forward ? problem.forward_workspace(made, options)
                                           : problem.backward_workspace(made, options);
  }
};

void for_each_subject(const std::function<void(const Subject&)>& test) {
  for (const Operation operation : {Operation::forward, Operation::backward}) {
    for (const std::string& backend : gpu_backends(operation, DType::bf16)) {
      for (const char* text : {kSplitText, kTwoPartsText}) {
        SCOPED_TRACE(say(to_string(operation), ", ", backend, ", ", text));
        test(Subject(operation, text, backend));
      }
    }
  }
}

TEST_F(GpuWorkspaces, TheFunctionIsAskedOnceForWhatTheCallNeeds) {
  for_each_subject([](const Subject& s) {
    const int64_t bytes = s.bytes();
    ASSERT_GT(bytes, 0);
    const auto want = s.results(s.options);
    Provider provider;
    AttentionOptions options = s.options;
    options.allocate = provider.function();
    {
      const PoolPeak peak;
      EXPECT_TRUE(s.results(options) == want);
      EXPECT_EQ(peak.bytes(), 0) << "the pool is not asked";
    }
    EXPECT_EQ(provider.asked(), std::vector<int64_t>{bytes});

    const GpuMemory brought(kGpu, bytes);
    options.workspace = {brought.data(), brought.bytes()};
    EXPECT_TRUE(s.results(options) == want);
    EXPECT_EQ(provider.asked().size(), 1u) << "nobody is asked for what is there";
    const PoolPeak peak;
    EXPECT_TRUE(s.results(s.options) == want);
    EXPECT_GE(peak.bytes(), bytes) << "without both, the pool is";
  });
}

TEST_F(GpuWorkspaces, WhatCannotServeIsRefusedAndTheNextCallRuns) {
  for_each_subject([](const Subject& s) {
    const auto want = s.results(s.options);
    const GpuMemory memory(kGpu, s.bytes() + 256);
    AttentionOptions options = s.options;
    options.allocate = [](int64_t) { return nullptr; };
    expect_error(ErrorKind::device,
                 say("while allocating a workspace of ", s.bytes(),
                     " bytes: the function of the caller returned null"),
                 [&] { s.run(options); });
    options.allocate = [&](int64_t) { return static_cast<std::byte*>(memory.data()) + 64; };
    expect_error(ErrorKind::usage,
                 "the memory that options.allocate returned begins 64 bytes behind a multiple of "
                 "256; a workspace must be aligned to 256 bytes, as what cudaMalloc gives",
                 [&] { s.run(options); });
    options.allocate = [](int64_t) -> void* { throw std::out_of_range("no more"); };
    EXPECT_THROW(s.run(options), std::out_of_range);
    // An error that it has dealt with, and left behind, is not taken for the call's.
    options.allocate = [&](int64_t) {
      EXPECT_NE(cudaMalloc(nullptr, 1), cudaSuccess);
      return memory.data();
    };
    EXPECT_TRUE(s.results(options) == want);
    EXPECT_TRUE(s.results(s.options) == want);
  });
}

// An allocator of several GPUs may switch between them, and then be wrong about which was current.
TEST_F(GpuWorkspaces, AFunctionMayLeaveAnotherGpuCurrent) {
  if (gpus().size() < 2) GTEST_SKIP() << "needs two GPUs";
  for_each_subject([](const Subject& s) {
    const auto want = s.results(s.options);
    const GpuMemory memory(kGpu, s.bytes());
    AttentionOptions options = s.options;
    options.allocate = [&](int64_t) {
      check_cuda(cudaSetDevice(1), "switching to another GPU");
      return memory.data();
    };
    s.run(options);
    int current = 0;
    check_cuda(cudaGetDevice(&current), "asking for the current GPU");
    EXPECT_EQ(current, 1) << "it stays as the function left it";
    check_cuda(cudaSetDevice(kGpu.ordinal), "switching back");
    EXPECT_TRUE(s.problem.results(s.operation) == want);
  });
}

TEST_F(GpuWorkspaces, NobodyIsAskedForNothing) {
  const GpuProblem problem({.q_len = 200, .k_len = 200});
  const Plan made = plan(parse("causal"), 200, 200);
  Provider provider;
  AttentionOptions options;
  options.allocate = provider.function();
  ASSERT_EQ(problem.forward_workspace(made), 0);
  problem.forward(made, options);
  synchronize(kGpu);
  EXPECT_TRUE(provider.asked().empty());
}

// Each call of a selection, with the memory of a function and with that of the pool.
TEST_F(GpuWorkspaces, SelectionsAskToo) {
  const SelectCase c{.heads = 16,
                     .q_len = 200,
                     .entries = 400,
                     .head_dim = 64,
                     .k = 20,
                     .dtype = DType::bf16,
                     .visible = causal(),
                     .device = kGpu};
  SelectProblem with_pool(c), with_function(c);
  Provider provider;
  for (SelectProblem* p : {&with_pool, &with_function}) {
    SelectTensors tensors(*p);
    SelectOptions options = p->options();
    const PoolPeak peak;
    if (p == &with_function) options.allocate = provider.function();
    select_keys(tensors.indexer, tensors.selection, options);
    tensors.finish();
    EXPECT_EQ(peak.bytes() > 0, p == &with_pool);
  }
  EXPECT_EQ(provider.asked().size(), 1u);
  EXPECT_TRUE(with_pool.indices.memory() == with_function.indices.memory());

  for (const auto& [backend, runs] : {std::pair{"auto", "sm80"}, {"simple", "simple"}}) {
    const LossCase loss{.heads = 16,
                        .head_dim = 64,
                        .target_heads = 16,
                        .target_dim = 64,
                        .q_len = 100,
                        .entries = 300,
                        .dtype = DType::bf16,
                        .target_dtype = DType::bf16,
                        .selected = 64,
                        .device = kGpu};
    LossProblem first(loss), second(loss);
    Provider of_loss;
    for (LossProblem* p : {&first, &second}) {
      LossTensors tensors(*p);
      tensors.options.backend = backend;
      EXPECT_TRUE(loss_runs_on(runs, tensors)) << runs;
      const PoolPeak peak;
      if (p == &second) tensors.options.allocate = of_loss.function();
      tensors.forward();
      tensors.backward();
      tensors.finish();
      EXPECT_EQ(peak.bytes() > 0, p == &first) << backend;
    }
    EXPECT_EQ(of_loss.asked().size(), 2u) << backend;
    EXPECT_TRUE(first.loss.values() == second.loss.values()) << backend;
    EXPECT_TRUE(first.dq.values() == second.dq.values()) << backend;
    EXPECT_TRUE(first.dk.values() == second.dk.values()) << backend;
  }
}

TEST_F(GpuWorkspaces, ThePoolKeepsItsMemoryUntilItIsReleased) {
  const Subject s(Operation::backward, kSplitText, "auto");
  const auto want = s.results(s.options);
  const int64_t kept = reserved_bytes();  // the host has waited
  EXPECT_GE(kept, s.bytes());
  for (int step = 0; step < 3; ++step) {
    EXPECT_TRUE(s.results(s.options) == want);
    EXPECT_EQ(reserved_bytes(), kept) << "the same memory serves each step";
  }
  release_workspaces(kGpu);
  EXPECT_EQ(reserved_bytes(), 0);
  release_workspaces(kGpu);  // again, with nothing there
  EXPECT_TRUE(s.results(s.options) == want);
}

TEST_F(GpuWorkspaces, WhatThePoolKeepsTheProcessCanHave) {
  constexpr size_t kKept = size_t{4} << 30;
  size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "asking for free memory");
  if (free < 2 * kKept) GTEST_SKIP() << free << " bytes are free on the GPU; 8 GiB are needed";
  void* memory = nullptr;
  check_cuda(cudaMallocFromPoolAsync(&memory, kKept, workspace_pool(), nullptr), "taking memory");
  check_cuda(cudaFreeAsync(memory, nullptr), "freeing memory");
  ASSERT_GE(reserved_bytes(), int64_t(kKept));
  check_cuda(cudaMemGetInfo(&free, &total), "asking for free memory");
  EXPECT_EQ(cudaMalloc(&memory, free + kKept / 2), cudaSuccess) << "more than is free without it";
  cudaFree(memory);
  cudaGetLastError();
  release_workspaces(kGpu);
}

// The next two are processes of their own, in which nothing has made the pool yet.
using WorkspacesDeathTest = GpuDeathTest;

// In memory of the caller, for a call that must not take any of the pool.
std::vector<std::byte> results_without_the_pool(const GpuProblem& problem, const Plan& made,
                                                AttentionOptions options) {
  const GpuMemory brought(kGpu, std::max(problem.forward_workspace(made, options),
                                         problem.backward_workspace(made, options)));
  options.workspace = {brought.data(), brought.bytes()};
  problem.forward(made, options);
  problem.backward(made, options);
  return problem.results(Operation::backward);
}

void the_pool_of_the_driver_is_left_as_it_was() {
  cudaMemPool_t drivers = nullptr;
  check_cuda(cudaDeviceGetDefaultMemPool(&drivers, kGpu.ordinal), "asking for the memory pool");
  constexpr int64_t kOwn = int64_t{37} << 20;  // neither the driver's value nor the library's
  uint64_t threshold = kOwn;
  check_cuda(cudaMemPoolSetAttribute(drivers, cudaMemPoolAttrReleaseThreshold, &threshold),
             "setting how much a memory pool keeps");
  const Subject s(Operation::backward, kSplitText, "auto");
  ASSERT_GT(s.bytes(), 0);
  s.run(s.options);
  synchronize(kGpu);
  EXPECT_NE(workspace_pool(), drivers);
  release_workspaces(kGpu);
  EXPECT_EQ(pool_attribute(drivers, cudaMemPoolAttrReleaseThreshold), kOwn);
  cudaMemPool_t current = nullptr;
  check_cuda(cudaDeviceGetMemPool(&current, kGpu.ordinal), "asking for the memory pool");
  EXPECT_EQ(current, drivers) << "cudaMallocAsync takes from there as before";
}
TEST_F(WorkspacesDeathTest, ThePoolOfTheDriverIsLeftAsItWas) {
  expect_in_own_process(the_pool_of_the_driver_is_left_as_it_was);
}

// The pool is then made in the midst of the capture. What the graph needs is its own.
void a_capture_is_the_first_to_take_memory() {
  const GpuProblem problem({.q_len = kLength, .k_len = kLength});
  const Plan made = plan(parse(kSplitText), kLength, kLength);
  const Stream stream;
  AttentionOptions options = on_stream(stream);
  ASSERT_GT(problem.backward_workspace(made, options), 0);
  const auto want = results_without_the_pool(problem, made, options);
  const Graph graph(stream, [&] { problem.backward(made, options); });
  release_workspaces(kGpu);
  for (int replay = 0; replay < 3; ++replay) {
    problem.spoil(Operation::backward);
    graph.launch(stream);
    EXPECT_TRUE(problem.results(Operation::backward) == want) << replay;
  }
}
TEST_F(WorkspacesDeathTest, ACaptureMayBeTheFirstToTakeMemory) {
  expect_in_own_process(a_capture_is_the_first_to_take_memory);
}

// Memory that a function takes in stream order, and frees there when the call has returned.
TEST_F(GpuWorkspaces, MemoryMayBeFreedInStreamOrderAfterTheCall) {
  const Subject s(Operation::backward, kTwoPartsText, "auto");
  const auto want = s.results(s.options);
  const Stream stream;
  AttentionOptions options = s.options;
  options.stream = stream.get();
  void* taken = nullptr;
  options.allocate = [&](int64_t bytes) {
    check_cuda(cudaMallocAsync(&taken, size_t(bytes), stream.get()), "taking memory");
    return taken;
  };
  const auto call = [&] {
    s.problem.backward(s.made, options);
    check_cuda(cudaFreeAsync(taken, stream.get()), "freeing memory");
  };
  for (int step = 0; step < 3; ++step) {
    s.problem.spoil(Operation::backward);
    call();
    EXPECT_TRUE(s.problem.results(Operation::backward) == want) << step;
  }
  const Graph graph(stream, call);
  s.problem.spoil(Operation::backward);
  graph.launch(stream);
  EXPECT_TRUE(s.problem.results(Operation::backward) == want) << "captured";
}

}  // namespace
}  // namespace keyhole::test
