// tests/gpu/graph_test.cpp
// Calls captured in a CUDA graph: replayed on other numbers in the same places they give the bits
// of a plain call, and what cannot be captured is refused without harm.
#include "gpu/graph.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "gpu/gpu_problem.h"
#include "gpu/pool.h"
#include "runtime/cuda/upload.h"

namespace keyhole::test {
namespace {

using Graphs = GpuTest;

// A split list, two parts of tiles, lists of keys, and a part of each form.
constexpr const char* kTexts[] = {kSplitText, kTwoPartsText, "random(1, 16, 3)",
                                  "window(128) | random(1, 16, 3)"};
constexpr int64_t kLength = kSplitLength;

Plan square_plan(const char* text) { return plan(parse(text), kLength, kLength); }

void replay(const KernelEntry& kernel, const char* text) {
  const GpuProblem problem(sizes_for(kernel, kLength));
  const Plan made = square_plan(text);
  const bool is_backward = kernel.operation == Operation::backward;
  if (is_backward) problem.forward(made);

  const Stream stream;
  const GpuMemory workspace(kGpu, workspace_bytes(kernel, made, problem));
  const Launch launch{
      .stream = stream.get(), .workspace = workspace.data(), .workspace_bytes = workspace.bytes()};
  synchronize(kGpu);
  queue(kernel, made, problem, launch);  // once before the capture
  const Graph graph(stream, [&] { queue(kernel, made, problem, launch); });

  for (const uint64_t seed : {2, 3, 4}) {
    problem.draw(seed);
    if (is_backward) problem.forward(made);
    queue(kernel, made, problem);
    const auto want = problem.results(kernel.operation);
    problem.spoil(kernel.operation);
    workspace.fill(0xff);  // nothing may be left there from one replay to the next
    synchronize(kGpu);
    graph.launch(stream);
    EXPECT_TRUE(problem.results(kernel.operation) == want)
        << kernel.name << ", " << text << ", seed " << seed;
  }
}

TEST_F(Graphs, EveryKernelReplaysWithTheBitsOfAPlainCall) {
  for (const Operation operation : {Operation::forward, Operation::backward}) {
    for (const KernelEntry* kernel : gpu_kernels(operation)) {
      for (const char* text : kTexts) replay(*kernel, text);
    }
  }
}

TEST_F(Graphs, ATrainingStepIsOneGraph) {
  for (const std::string& backend : gpu_backends(Operation::backward, DType::bf16)) {
    const GpuProblem problem({.heads = 4, .kv_heads = 2, .q_len = kLength, .k_len = kLength});
    const Plan made = square_plan("causal & (window(255) | sinks(4))");
    const Stream stream;
    AttentionOptions options = on_stream(stream);
    options.backend = backend;
    const GpuMemory workspace(kGpu, std::max(problem.forward_workspace(made, for_forward(options)),
                                             problem.backward_workspace(made, options)));
    options.workspace = {workspace.data(), workspace.bytes()};
    const auto step = [&] {
      problem.forward(made, for_forward(options));
      problem.backward(made, options);
    };
    synchronize(kGpu);
    step();
    const Graph graph(stream, step);
    for (const uint64_t seed : {2, 3, 4}) {
      problem.draw(seed);
      step();
      const auto out = problem.results(Operation::forward);
      const auto gradients = problem.results(Operation::backward);
      problem.spoil(Operation::forward);
      problem.spoil(Operation::backward);
      graph.launch(stream);
      EXPECT_TRUE(problem.results(Operation::forward) == out) << backend << ", seed " << seed;
      EXPECT_TRUE(problem.results(Operation::backward) == gradients)
          << backend << ", seed " << seed;
    }
  }
}

// Takes as much memory as is in use, and more, and fills it with NaN: what was given back would be
// overwritten.
void overwrite_free_memory() {
  std::vector<GpuMemory> taken;
  for (int i = 0; i < 200; ++i) {
    taken.emplace_back(kGpu, int64_t{1} << (10 + i % 14)).fill(0xff);
  }
  synchronize(kGpu);
}

// CUDA tells of a graph's end some time after it; the next call then frees what the graph held.
void expect_pool_falls_to(int64_t bytes, const std::function<void()>& call) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  do {
    call();
    if (pool_bytes() == bytes) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  } while (std::chrono::steady_clock::now() < end);
  EXPECT_EQ(pool_bytes(), bytes) << "a graph that has gone keeps its plan";
}

// A plan that a graph follows, and how it is lost.
void replay_without_plan(Operation operation, const char* text,
                         const std::function<void(std::optional<Plan>&)>& lose) {
  SCOPED_TRACE(std::string(to_string(operation)) + ", " + text);
  const GpuProblem problem({.q_len = kLength, .k_len = kLength});
  const GpuMemory workspace(kGpu, int64_t{64} << 20);
  const GpuProblem other({.heads = 1, .q_len = 100, .k_len = 100});
  const Plan other_plan = plan(parse("causal"), 100, 100);
  const auto other_call = [&] { other.forward(other_plan); };
  other_call();
  const int64_t before = pool_bytes();

  std::optional<Plan> lost = square_plan(text);
  const Stream stream;
  AttentionOptions options = on_stream(stream);
  options.workspace = {workspace.data(), workspace.bytes()};
  const auto call = [&] {
    operation == Operation::forward ? problem.forward(*lost, options)
                                    : problem.backward(*lost, options);
  };
  problem.forward(*lost, for_forward(options));  // what a backward pass reads
  call();
  const auto want = problem.results(operation);
  {
    Graph graph(stream, [&] {
      call();
      call();  // kept once
    });
    lose(lost);
    overwrite_free_memory();
    other_call();  // frees what nobody keeps
    for (int replay = 0; replay < 3; ++replay) {
      problem.spoil(operation);
      graph.launch(stream);
      EXPECT_TRUE(problem.results(operation) == want) << "replay " << replay;
      if (replay == 0) graph.keep_instance_only();
    }
    EXPECT_GT(pool_bytes(), before) << "the graph has the lists";
    graph.launch(stream);  // and ends while it runs
  }
  lost.reset();
  expect_pool_falls_to(before, other_call);
}

TEST_F(Graphs, AGraphKeepsThePlansItFollows) {
  for (const Operation operation : {Operation::forward, Operation::backward}) {
    for (const char* text : kTexts) {
      replay_without_plan(operation, text, [](std::optional<Plan>& plan) { plan.reset(); });
    }
  }
}

TEST_F(Graphs, AGraphKeepsWhatItsPlanHasPushedOut) {
  std::vector<GpuProblem> others;
  for (int64_t heads = 3; heads < 3 + int64_t{kMostUploads}; ++heads) {
    others.emplace_back(ProblemSizes{.heads = heads, .q_len = kLength, .k_len = kLength});
  }
  replay_without_plan(Operation::forward, kSplitText, [&](std::optional<Plan>& plan) {
    for (const GpuProblem& other : others) other.forward(*plan);
    synchronize(kGpu);
  });
}

TEST_F(Graphs, APlanMayGoBeforeTheCaptureEnds) {
  const GpuProblem problem({.q_len = kLength, .k_len = kLength});
  std::optional<Plan> lost = square_plan(kSplitText);
  const Stream stream;
  problem.forward(*lost, on_stream(stream));
  const auto want = problem.results(Operation::forward);
  const Graph graph(stream, [&] {
    problem.forward(*lost, on_stream(stream));
    lost.reset();
  });
  overwrite_free_memory();
  problem.spoil(Operation::forward);
  graph.launch(stream);
  EXPECT_TRUE(problem.results(Operation::forward) == want);
}

TEST_F(Graphs, APlanThatWasNeverUsedIsRefusedAndNothingIsBroken) {
  const GpuProblem problem({.q_len = kLength, .k_len = kLength});
  const Stream stream;
  const AttentionOptions options = on_stream(stream);
  for (const Operation operation : {Operation::forward, Operation::backward}) {
    const Plan fresh = square_plan("causal");
    const auto call = [&](const Plan& with) {
      operation == Operation::forward ? problem.forward(with, options)
                                      : problem.backward(with, options);
    };
    expect_error(ErrorKind::usage,
                 "attention: the plan causal is not yet on the GPU, and lists cannot be copied "
                 "there while a CUDA graph is captured; call once before the capture (a plan "
                 "keeps the lists of its 16 most recent kinds of calls)",
                 [&] { const Graph graph(stream, [&] { call(fresh); }); });

    call(square_plan("causal"));  // another plan, on the same stream
    const auto want = problem.results(operation);
    problem.spoil(operation);
    call(fresh);  // the plan that was refused
    EXPECT_TRUE(problem.results(operation) == want) << to_string(operation);
    problem.spoil(operation);
    const GpuMemory workspace(kGpu, int64_t{64} << 20);
    AttentionOptions captured = options;
    captured.workspace = {workspace.data(), workspace.bytes()};
    synchronize(kGpu);
    const Graph graph(stream, [&] {  // and now it may be captured
      operation == Operation::forward ? problem.forward(fresh, captured)
                                      : problem.backward(fresh, captured);
    });
    graph.launch(stream);
    EXPECT_TRUE(problem.results(operation) == want) << to_string(operation) << " captured";
  }
}

}  // namespace
}  // namespace keyhole::test
