// tests/gpu/errors_test.cpp
// Mistakes and refusals that only a machine with a GPU can meet: each says what was passed and what
// is accepted, and the next good call works.
#include "base/check.h"
#include "gpu/gpu_problem.h"
#include "runtime/registry.h"
#include "support/message_of.h"

namespace keyhole::test {
namespace {

using GpuErrors = GpuTest;
constexpr int64_t kLength = 200;

struct Prepared {
  GpuProblem problem{{.q_len = kLength, .k_len = kLength}};
  Plan made = plan(parse("causal"), kLength, kLength);
  std::vector<std::byte> want;

  Prepared() {
    problem.forward(made);
    want = problem.results(Operation::forward);
  }
  void expect_it_still_works() const {
    problem.spoil(Operation::forward);
    problem.forward(made);
    EXPECT_TRUE(problem.results(Operation::forward) == want);
  }
};

TEST_F(GpuErrors, TensorsInSeveralPlaces) {
  const Prepared s;
  const GpuProblem& p = s.problem;
  std::vector<uint16_t> memory(size_t(2 * kLength * 64));
  const TensorView host_k(memory.data(), DType::bf16, {1, 1, kLength, 64});
  const TensorView host_out(memory.data(), DType::bf16, {1, 2, kLength, 64});
  const TensorView &q = p.q.view(), &k = p.k.view(), &v = p.v.view(), &out = p.out.view();
  expect_error(ErrorKind::usage,
               "attention: q is on GPU 0 but k is in host memory; all tensors of a call must be "
               "in one place",
               [&] { attention_forward(q, host_k, v, s.made, out); });
  expect_error(ErrorKind::usage,
               "attention: q is on GPU 0 but out is in host memory; all tensors of a call must be "
               "in one place",
               [&] { attention_forward(q, k, v, s.made, host_out); });
  expect_error(ErrorKind::usage,
               "attention: q is in host memory but k is on GPU 0; all tensors of a call must be "
               "in one place",
               [&] { attention_forward(host_out, k, v, s.made, out); });
  std::vector<float> sink(2);
  AttentionOptions with_sink;
  with_sink.sink = TensorView(sink.data(), DType::f32, {2});
  expect_error(ErrorKind::usage,
               "attention: q is on GPU 0 but sink is in host memory; all tensors of a call must "
               "be in one place",
               [&] { attention_forward(q, k, v, s.made, out, {}, with_sink); });
  expect_error(
      ErrorKind::usage,
      "attention: out is on GPU 0 but the other out is in host memory; all tensors of a call must "
      "be in one place",
      [&] { merge(out, p.lse.view(), host_out, p.lse.view()); });
  s.expect_it_still_works();
}

TEST_F(GpuErrors, AGpuThatIsNotThere) {
  const Prepared s;
  const int num_gpus = int(gpus().size());
  for (const int ordinal : {num_gpus, -1}) {
    const auto moved = [&](TensorView view) {
      view.device.ordinal = ordinal;
      return view;
    };
    const GpuProblem& p = s.problem;
    expect_error(ErrorKind::usage,
                 say("GPU ", ordinal, " does not exist; this machine has GPUs 0 to ", num_gpus - 1),
                 [&] {
                   attention_forward(moved(p.q.view()), moved(p.k.view()), moved(p.v.view()),
                                     s.made, moved(p.out.view()));
                 });
  }
  s.expect_it_still_works();
}

TEST_F(GpuErrors, ADtypeThatNoGpuKernelReads) {
  const Prepared s;
  const GpuProblem wide({.q_len = kLength, .k_len = kLength, .dtype = DType::f64});
  const std::string forward = message_of([&] { wide.forward(s.made); });
  const std::string backward = message_of([&] { wide.backward(s.made); });
  const std::string request =
      say(", f64, head_dim 64, GPU 0 (sm_", gpu(kGpu).compute_capability, "), on auto\n");
  EXPECT_EQ(forward.find("no kernel for attention forward" + request), 0u) << forward;
  EXPECT_EQ(backward.find("no kernel for attention backward" + request), 0u) << backward;
  for (const std::string& text : {forward, backward}) {
    for (const std::string& backend : backends_of(kernel_table())) {
      const char* objection = backend == "cpu"      ? "reads host memory"
                              : backend == "simple" ? "reads f32, reads f16, reads bf16"
                                                    : "reads bf16, reads f16";
      EXPECT_NE((text + "\n").find(say("\n  ", backend, ": ", objection, "\n")), std::string::npos)
          << backend << " should say: " << objection << "\nin: " << text;
    }
  }
  try {
    wide.forward(s.made);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unsupported);
  }
  s.expect_it_still_works();
}

TEST_F(GpuErrors, ABackendOfTheOtherSide) {
  const Prepared s;
  const std::string text = message_of([&] { s.problem.forward(s.made, by_backend("cpu")); });
  EXPECT_EQ(text.find("no kernel for attention forward, bf16, head_dim 64, GPU 0"), 0u) << text;
  EXPECT_NE(text.find(", on cpu\n  cpu: reads host memory"), std::string::npos) << text;
  s.expect_it_still_works();
}

TEST_F(GpuErrors, MemoryThatCannotBeHad) {
  const Prepared s;
  expect_error(ErrorKind::device, "while allocating 1125899906842624 bytes on GPU 0: out of memory",
               [] { const GpuMemory memory(kGpu, int64_t{1} << 50); });
  s.expect_it_still_works();
  const GpuMemory memory(kGpu, 1024);  // and memory can be had again
  EXPECT_NE(memory.data(), nullptr);
}

// All memory of the GPU down to the last piece, for as long as this lives.
class Hog {
 public:
  Hog() {
    synchronize(kGpu);
    release_workspaces(kGpu);  // the next call must not find a workspace there
    for (size_t bytes = size_t{1} << 36; bytes >= 512;) {
      void* memory = nullptr;
      if (cudaMallocAsync(&memory, bytes, nullptr) == cudaSuccess) {
        taken_.push_back(memory);
      } else {
        cudaGetLastError();
        bytes /= 2;
      }
    }
    synchronize(kGpu);
  }
  ~Hog() {
    for (void* memory : taken_) cudaFreeAsync(memory, nullptr);
    cudaMemPool_t pool = nullptr;
    cudaDeviceSynchronize();
    if (cudaDeviceGetDefaultMemPool(&pool, kGpu.ordinal) == cudaSuccess) cudaMemPoolTrimTo(pool, 0);
    cudaGetLastError();
  }
  Hog(const Hog&) = delete;
  Hog& operator=(const Hog&) = delete;

 private:
  std::vector<void*> taken_;
};

TEST_F(GpuErrors, AWorkspaceThatCannotBeHad) {
  constexpr int64_t kLong = 32768;
  const GpuProblem problem({.heads = 32, .kv_heads = 32, .q_len = kLong, .k_len = kLong});
  const Plan made = plan(parse("causal & window(127)"), kLong, kLong);
  AttentionOptions in_order;
  in_order.deterministic = true;
  problem.forward(made);
  problem.backward(made, in_order);
  const auto want = problem.results(Operation::backward);
  const int64_t bytes = problem.backward_workspace(made);
  ASSERT_GT(bytes, 0);
  {
    const Hog hog;
    for (int repeat = 0; repeat < 3; ++repeat) {
      expect_error(ErrorKind::device,
                   say("while allocating a workspace of ", bytes, " bytes: out of memory"),
                   [&] { problem.backward(made); });
    }
  }
  problem.backward(made);  // and with memory it runs
  problem.spoil(Operation::backward);
  problem.backward(made, in_order);
  EXPECT_TRUE(problem.results(Operation::backward) == want);
}

TEST_F(GpuErrors, ListsThatCannotBeCopied) {
  const Prepared s;
  const Plan other = plan(parse("causal & window(20)"), kLength, kLength);
  {
    const Hog hog;
    try {
      s.problem.forward(other);
      ADD_FAILURE() << "the lists found room";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::device) << error.what();
    }
  }
  s.problem.forward(other);  // the same plan, now that there is room
  synchronize(kGpu);
  s.expect_it_still_works();
}

// The driver refuses a launch on the default stream while a stream that this waits for is captured.
TEST_F(GpuErrors, ALaunchThatFails) {
  const Prepared s;
  cudaStream_t captured = nullptr;
  check_cuda(cudaStreamCreate(&captured), "making a stream");
  check_cuda(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal), "beginning a capture");
  ErrorKind kind = ErrorKind::usage;
  std::string message = "no error";
  try {
    s.problem.forward(s.made);
  } catch (const Error& error) {
    kind = error.kind();
    message = error.what();
  }
  cudaGraph_t graph = nullptr;
  EXPECT_NE(cudaStreamEndCapture(captured, &graph), cudaSuccess);  // what was tried ended it
  cudaGetLastError();
  check_cuda(cudaStreamDestroy(captured), "giving a stream back");
  EXPECT_EQ(kind, ErrorKind::device);
  EXPECT_EQ(message.find("while launching"), 0u) << message;
  s.expect_it_still_works();
}

}  // namespace
}  // namespace keyhole::test
