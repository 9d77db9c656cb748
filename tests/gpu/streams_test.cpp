// tests/gpu/streams_test.cpp
// Several streams at once, plans that go while kernels still follow them, and who brings the
// workspace: none of it changes a bit of the results.
#include <optional>

#include "base/check.h"
#include "gpu/gpu_problem.h"

namespace keyhole::test {
namespace {

using Streams = GpuTest;
constexpr int64_t kLength = kSplitLength;

Plan square_plan(const char* text, int64_t length = kLength) {
  return plan(parse(text), length, length);
}

void queue_step(const GpuProblem& problem, const Plan& plan, const Stream& stream) {
  problem.forward(plan, on_stream(stream));
  problem.backward(plan, on_stream(stream));
}

std::vector<std::byte> all_results(const GpuProblem& problem) {
  auto all = problem.results(Operation::forward);
  const auto gradients = problem.results(Operation::backward);
  all.insert(all.end(), gradients.begin(), gradients.end());
  return all;
}

void spoil_all(const GpuProblem& problem) {
  problem.spoil(Operation::forward);
  problem.spoil(Operation::backward);
}

// A problem, and what one stream makes of it.
struct Track {
  const char* text;
  GpuProblem problem;
  Stream stream;
  std::vector<std::byte> want;

  Track(const char* pattern, const ProblemSizes& sizes, uint64_t seed)
      : text(pattern), problem(sizes, seed) {
    queue_step(problem, square_plan(text), stream);
    want = all_results(problem);
  }
};

TEST_F(Streams, TwoAtOnceGiveWhatOneGives) {
  const Track a(kSplitText, {.heads = 4, .kv_heads = 2, .q_len = kLength, .k_len = kLength}, 1);
  const Track b(
      "strided(64) | random(1, 16, 3)",
      {.heads = 3, .q_len = kLength, .k_len = kLength, .head_dim = 128, .dtype = DType::f16}, 2);
  std::optional<Plan> plan_a, plan_b;
  for (int repeat = 0; repeat < 50; ++repeat) {
    if (repeat % 10 == 0) {  // new plans are copied to the GPU while the other stream runs
      plan_a = square_plan(a.text);
      plan_b = square_plan(b.text);
    }
    spoil_all(a.problem);
    spoil_all(b.problem);
    for (int i = 0; i < 3; ++i) {
      queue_step(a.problem, *plan_a, a.stream);
      queue_step(b.problem, *plan_b, b.stream);
    }
    ASSERT_TRUE(all_results(a.problem) == a.want) << "repeat " << repeat;
    ASSERT_TRUE(all_results(b.problem) == b.want) << "repeat " << repeat;
  }
}

TEST_F(Streams, TwoFollowOnePlanFromTheFirstCallOn) {
  constexpr const char* kText = "causal & (window(255) | sinks(4))";
  const ProblemSizes sizes{.heads = 4, .kv_heads = 2, .q_len = kLength, .k_len = kLength};
  const Track a(kText, sizes, 1), b(kText, sizes, 2);
  for (int repeat = 0; repeat < 50; ++repeat) {
    spoil_all(a.problem);
    spoil_all(b.problem);
    const Plan fresh = square_plan(kText);  // copied by one stream, awaited by the other
    const bool a_first = repeat % 2 == 0;
    queue_step(a_first ? a.problem : b.problem, fresh, a_first ? a.stream : b.stream);
    queue_step(a_first ? b.problem : a.problem, fresh, a_first ? b.stream : a.stream);
    ASSERT_TRUE(all_results(a.problem) == a.want) << "repeat " << repeat;
    ASSERT_TRUE(all_results(b.problem) == b.want) << "repeat " << repeat;
  }
}

// Takes memory from the pool on another stream and fills it with NaN: what was given back too early
// would be overwritten.
void churn_memory() {
  const Stream other;
  for (int i = 0; i < 200; ++i) {
    void* memory = nullptr;
    const size_t bytes = size_t{1} << (10 + i % 14);
    check_cuda(cudaMallocAsync(&memory, bytes, other.get()), "taking memory");
    check_cuda(cudaMemsetAsync(memory, 0xff, bytes, other.get()), "filling memory");
    check_cuda(cudaFreeAsync(memory, other.get()), "giving memory back");
  }
  check_cuda(cudaStreamSynchronize(other.get()), "filling memory");
}

// On `stream`, null: the default stream.
void drop_plans_of_waiting_kernels(cudaStream_t stream) {
  // The large problem keeps the stream busy for several milliseconds at least: 9 TFLOP.
  constexpr int64_t kLong = 32768;
  const GpuProblem large({.heads = 16, .q_len = kLong, .k_len = kLong, .head_dim = 128});
  const GpuProblem small({.q_len = kLength, .k_len = kLength});
  const Plan large_plan = square_plan("dense", kLong);
  const AttentionOptions plain{.deterministic = true, .stream = stream};
  AttentionOptions options = plain;
  options.sink = small.sink.view();
  for (const char* text : {kSplitText, kTwoPartsText, "random(1, 16, 3)"}) {
    std::optional<Plan> dropped = square_plan(text);
    small.forward(*dropped, options);
    const std::vector<float> want = small.out.read();
    std::vector<GpuTensor> outs(20);
    for (GpuTensor& out : outs) {
      out = GpuTensor(DType::bf16, {1, 2, kLength, 64});
      out.fill(0xff);
    }
    synchronize(kGpu);
    large.forward(large_plan, plain);
    for (const GpuTensor& out : outs) {
      attention_forward(small.q.view(), small.k.view(), small.v.view(), *dropped, out.view(), {},
                        options);
    }
    dropped.reset();
    EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady)
        << "the kernels did not wait: this GPU needs a larger problem before them";
    churn_memory();
    for (size_t i = 0; i < outs.size(); ++i) {
      ASSERT_TRUE(outs[i].read() == want) << text << ", launch " << i;
    }
  }
}

TEST_F(Streams, APlanMayGoWhileItsKernelsWait) {
  const Stream stream;
  drop_plans_of_waiting_kernels(stream.get());
}
TEST_F(Streams, APlanMayGoWhileItsKernelsWaitOnTheDefaultStream) {
  drop_plans_of_waiting_kernels(nullptr);
}
TEST_F(Streams, APlanThatGoesDuringACaptureSpoilsNothing) {
  const GpuProblem problem({.q_len = kLength, .k_len = kLength});
  std::optional<Plan> dropped = square_plan(kSplitText);
  problem.forward(*dropped);
  synchronize(kGpu);
  cudaStream_t blocking = nullptr;  // one that the default stream waits for
  check_cuda(cudaStreamCreate(&blocking), "making a stream");
  check_cuda(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeThreadLocal), "capturing");
  dropped.reset();
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(blocking, &graph), cudaSuccess);
  if (graph != nullptr) cudaGraphDestroy(graph);
  cudaStreamDestroy(blocking);
  problem.forward(square_plan(kSplitText));
  synchronize(kGpu);
}

TEST_F(Streams, TheWorkspaceMayComeFromTheCallerOrThePool) {
  for (const Operation operation : {Operation::forward, Operation::backward}) {
    for (const KernelEntry* kernel : gpu_kernels(operation)) {
      for (const char* text : {kSplitText, kTwoPartsText}) {
        const GpuProblem problem(sizes_for(*kernel, kLength));
        const Plan made = square_plan(text);
        problem.forward(made);  // what a backward pass reads
        const int64_t bytes = workspace_bytes(*kernel, made, problem);
        ASSERT_GT(bytes, 0) << kernel->name << ", " << text;
        const GpuMemory workspace(kGpu, bytes + 4096);
        workspace.fill(0xff);
        Launch launch{.workspace = workspace.data(), .workspace_bytes = bytes - 1};
        problem.spoil(operation);
        expect_error(
            ErrorKind::usage,
            say("attention: the workspace has ", bytes - 1, " bytes; this call needs ", bytes,
                ". forward_workspace_bytes() and backward_workspace_bytes() tell how many"),
            [&] { queue(*kernel, made, problem, launch); });

        launch.workspace_bytes = bytes;
        queue(*kernel, made, problem, launch);
        const auto want = problem.results(operation);
        launch.workspace_bytes = workspace.bytes();  // more than enough
        problem.spoil(operation);
        queue(*kernel, made, problem, launch);
        EXPECT_TRUE(problem.results(operation) == want) << kernel->name << ", " << text;
        problem.spoil(operation);
        queue(*kernel, made, problem);
        EXPECT_TRUE(problem.results(operation) == want) << kernel->name << ", " << text;
      }
    }
  }
}

}  // namespace
}  // namespace keyhole::test
