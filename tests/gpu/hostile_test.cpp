// tests/gpu/hostile_test.cpp
// Shapes and places that break launches and addresses rather than arithmetic: more heads, batch
// entries and work items than a grid has room for in y or z, strides that pass 2^31 elements, rows
// that are not aligned, and another GPU than the first.
#include <algorithm>
#include <array>
#include <iostream>

#include "base/check.h"
#include "gpu/gpu_problem.h"
#include "support/check_case.h"

namespace keyhole::test {
namespace {

using GpuHostile = GpuTest;

int64_t free_bytes() {
  size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "asking for free memory");
  return int64_t(free);
}

TEST_F(GpuHostile, MoreThan65535OfEverything) {
  constexpr int64_t kNeeded = 24'000'000'000;
  if (free_bytes() < kNeeded) {
    GTEST_SKIP() << free_bytes() << " bytes are free on the GPU; this test takes up to " << kNeeded;
  }
  CheckStats stats;
  for (const char* line : {
           "pattern=causal batch=66000 q_len=3 k_len=3 sink=1",
           "pattern=window(1) heads=66000 kv_heads=66000 q_len=2 k_len=3",
           "pattern=dense heads=131074 kv_heads=65537 q_len=1 k_len=2 sink=1",
           // 600 heads of 111 tiles of 128 queries
           "pattern=sinks(1) heads=600 kv_heads=600 q_len=14100 k_len=1",
           // the same for tiles of keys
           "pattern=dense heads=600 kv_heads=600 q_len=1 k_len=14100",
       }) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      Case c = parse_case(line);
      c.dtype = dtype, c.tile = -1;
      for (const KernelChoice& kernel : kernels_for(c)) {
        // One width of each backend: launches do not differ by it.
        const bool is_narrowest = kernel.forward->max_head_dim == 64;
        if (kernel.forward->device != Device::Kind::cuda ||
            (kernel.forward->backend != "simple" && !is_narrowest)) {
          continue;
        }
        const Failure failure = check_case_with(c, kernel, &stats);
        EXPECT_FALSE(failure) << kernel.forward->name << "\n  " << failure.kind << ": "
                              << failure.detail << "\n  " << to_text(c);
      }
    }
  }
  std::cout << stats.kernel_runs << " kernel runs, " << stats.pairs << " pairs\n";
}

// Nothing to do is done: no launch of an empty grid, and results where there is room for any.
TEST_F(GpuHostile, NothingToDo) {
  CheckStats stats;
  for (const char* line :
       {"pattern=dense batch=0 heads=2 kv_heads=1 q_len=70 k_len=70",
        "pattern=causal heads=0 kv_heads=2 q_len=130 k_len=130", "pattern=dense q_len=0 k_len=0",
        "pattern=causal heads=2 kv_heads=1 q_len=0 k_len=130 sink=1",
        "pattern=causal heads=2 kv_heads=1 q_len=130 k_len=0 sink=1",
        "pattern=not(dense) heads=2 kv_heads=1 q_len=130 k_len=130",
        "pattern=random(1,0,3) heads=2 kv_heads=1 q_len=130 k_len=130"}) {
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
      for (const int64_t head_dim : {8, 64, 128, 256}) {
        Case c = parse_case(line);
        c.dtype = dtype, c.head_dim = c.v_head_dim = head_dim, c.tile = -1;
        for (const KernelChoice& kernel : kernels_for(c)) {
          if (kernel.forward->device != Device::Kind::cuda) continue;
          const Failure failure = check_case_with(c, kernel, &stats);
          EXPECT_FALSE(failure) << kernel.forward->name << "\n  " << failure.kind << ": "
                                << failure.detail << "\n  " << to_text(c);
        }
      }
    }
  }
  std::cout << stats.kernel_runs << " kernel runs\n";
}

// Rows of one tensor lie so far apart that the last ones are beyond 2^31 elements.
constexpr int64_t kRows = 520, kDimOfFar = 64, kFar = (int64_t{1} << 22) + 8;
static_assert((kRows - 1) * kFar > int64_t{1} << 31);

void copy_rows(void* to, int64_t to_stride, const void* from, int64_t from_stride) {
  check_cuda(
      cudaMemcpy2DAsync(to, size_t(2 * to_stride), from, size_t(2 * from_stride),
                        size_t(2 * kDimOfFar), size_t(kRows), cudaMemcpyDeviceToDevice, nullptr),
      "copying rows on the GPU");
}

TEST_F(GpuHostile, StridesMayPass2To31) {
  constexpr int64_t kBytes = 2 * kRows * kFar;
  if (free_bytes() < kBytes + 1'000'000'000) {
    GTEST_SKIP() << free_bytes() << " bytes are free on the GPU; this test takes " << kBytes;
  }
  const GpuProblem p({.heads = 1, .q_len = kRows, .k_len = kRows, .has_sink = false});
  const GpuMemory far_memory(kGpu, kBytes);
  const Plan made = plan(parse("causal & (window(200) | sinks(4))"), kRows, kRows);
  TensorView q = p.q.view(), k = p.k.view(), v = p.v.view(), dout = p.dout.view();
  TensorView out = p.out.view(), dq = p.dq.view(), dk = p.dk.view(), dv = p.dv.view();
  const std::array inputs = {&q, &k, &v, &dout}, outputs = {&out, &dq, &dk, &dv};
  for (const std::string& backend : gpu_backends(Operation::backward, DType::bf16)) {
    AttentionOptions options = by_backend(backend);
    options.deterministic = true;
    const auto run = [&] {
      attention_forward(q, k, v, made, out, p.lse.view(), for_forward(options));
      attention_backward(dout, q, k, v, out, p.lse.view(), made, {dq, dk, dv, {}}, options);
    };
    const auto results = [&] {
      auto all = p.results(Operation::forward);
      const auto gradients = p.results(Operation::backward);
      all.insert(all.end(), gradients.begin(), gradients.end());
      return all;
    };
    const auto spoil = [&] {
      p.spoil(Operation::forward);
      p.spoil(Operation::backward);
    };
    spoil();
    run();
    const auto want = results();
    const auto check = [&](TensorView* tensor, bool is_output, size_t number) {
      const TensorView near = *tensor;
      tensor->data = far_memory.data();
      tensor->strides[0] = tensor->strides[1] = kRows * kFar;
      tensor->strides[2] = kFar;
      spoil();
      if (!is_output) copy_rows(far_memory.data(), kFar, near.data, kDimOfFar);
      run();
      if (is_output) copy_rows(near.data, kDimOfFar, far_memory.data(), kFar);
      *tensor = near;
      EXPECT_TRUE(results() == want)
          << backend << ", " << (is_output ? "output " : "input ") << number;
    };
    for (size_t i = 0; i < inputs.size(); ++i) check(inputs[i], /*is_output=*/false, i);
    for (size_t i = 0; i < outputs.size(); ++i) check(outputs[i], /*is_output=*/true, i);
  }
}

TEST_F(GpuHostile, RowsThatAreNotAlignedGoToTheKernelThatTakesThem) {
  constexpr int64_t kLength = 200;
  const auto backends = gpu_backends(Operation::forward, DType::bf16);
  if (std::find(backends.begin(), backends.end(), "sm80") == backends.end()) {
    GTEST_SKIP() << "no kernel here asks for aligned rows";
  }
  const GpuProblem p({.heads = 1, .q_len = kLength, .k_len = kLength, .has_sink = false});
  const Plan made = plan(parse("causal"), kLength, kLength);
  // q again, one element further on.
  const GpuMemory memory(kGpu, p.q.bytes() + 2);
  TensorView shifted = p.q.view();
  shifted.data = static_cast<std::byte*>(memory.data()) + 2;
  check_cuda(cudaMemcpyAsync(shifted.data, p.q.view().data, size_t(p.q.bytes()),
                             cudaMemcpyDeviceToDevice, nullptr),
             "copying a tensor on the GPU");
  const TensorView &k = p.k.view(), &v = p.v.view(), &out = p.out.view(), &lse = p.lse.view();
  p.forward(made, by_backend("simple"));
  const auto want = p.results(Operation::forward);
  p.spoil(Operation::forward);
  attention_forward(shifted, k, v, made, out, lse);
  EXPECT_TRUE(p.results(Operation::forward) == want);

  EXPECT_NE(kernel_for_forward(p.q.view(), v, made).find("simple.forward"), 0u);
  EXPECT_EQ(kernel_for_forward(shifted, v, made).find("simple.forward"), 0u);
  try {
    attention_forward(shifted, k, v, made, out, lse, by_backend("sm80"));
    ADD_FAILURE() << "sm80 took rows that are not aligned";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unsupported);
    EXPECT_NE(
        std::string(error.what()).find("sm80: needs rows that begin at multiples of 16 bytes"),
        std::string::npos)
        << error.what();
  }
}

TEST_F(GpuHostile, EveryGpuOfTheMachineGivesTheSame) {
  if (gpus().size() < 2) GTEST_SKIP() << "this machine has one GPU";
  constexpr int64_t kLength = kSplitLength;
  const GpuProblem p({.q_len = kLength, .k_len = kLength});
  const Plan made = plan(parse(kSplitText), kLength, kLength);
  p.forward(made);
  const std::vector<float> want = p.out.read();
  for (int ordinal = 1; ordinal < int(gpus().size()); ++ordinal) {
    if (gpu({Device::Kind::cuda, ordinal}).name != gpu(kGpu).name) {
      std::cout << "GPU " << ordinal << " is left out: it is of another kind\n";
      continue;
    }
    const Device there{Device::Kind::cuda, ordinal};
    std::vector<GpuMemory> copies;
    const auto move = [&](const GpuTensor& tensor) {
      std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes()));
      check_cuda(cudaMemcpy(bytes.data(), tensor.view().data, bytes.size(), cudaMemcpyDeviceToHost),
                 "copying from the GPU");
      GpuMemory& memory = copies.emplace_back(there, tensor.bytes());
      memory.copy_from_host(bytes.data(), tensor.bytes());
      synchronize(there);
      TensorView view = tensor.view();
      view.data = memory.data(), view.device = there;
      return view;
    };
    AttentionOptions options;
    options.sink = move(p.sink);
    const TensorView q = move(p.q), k = move(p.k), v = move(p.v), out = move(p.dout);
    attention_forward(q, k, v, made, out, {}, options);
    synchronize(there);
    check_cuda(cudaMemcpy(p.dq.view().data, out.data, size_t(p.dq.bytes()), cudaMemcpyDefault),
               "copying between GPUs");
    EXPECT_TRUE(p.dq.read() == want) << "GPU " << ordinal;
  }
}

}  // namespace
}  // namespace keyhole::test
