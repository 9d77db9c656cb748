// tests/gpu/graph_test.cpp
// Calls captured in a CUDA graph: replayed on other numbers in the same places they give the bits
// of a plain call, and what cannot be captured is refused without harm.
#include <algorithm>

#include "gpu/gpu_problem.h"

namespace keyhole::test {
namespace {

using Graphs = GpuTest;

// A split list, two parts of tiles, lists of keys, and a part of each form.
constexpr const char* kTexts[] = {kSplitText, kTwoPartsText, "random(1, 16, 3)",
                                  "window(128) | random(1, 16, 3)"};
constexpr int64_t kLength = kSplitLength;

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
    cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(const Stream& stream) const {
    check_cuda(cudaGraphLaunch(ready_, stream.get()), "launching a graph");
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t ready_ = nullptr;
};

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
    const TensorView &q = problem.q.view(), &k = problem.k.view(), &v = problem.v.view();
    const GpuMemory workspace(kGpu,
                              std::max(forward_workspace_bytes(q, k, v, made, for_forward(options)),
                                       backward_workspace_bytes(q, k, v, made, options)));
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
                 "there while a CUDA graph is captured; call once before the capture",
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
