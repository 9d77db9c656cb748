// bench/gpu_kernels.cpp
// keyhole_gpu_kernels [FILTER]: times the GPU kernels on the patterns of the project's tables,
// forward and backward, with CUDA events: 3 calls to warm up, then the median of 15. No check: the
// tests do that. Cases whose name does not contain FILTER are left out.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "kernels/device/check_cuda.h"
#include "keyhole/attention.h"
#include "runtime/gpu.h"
#include "runtime/gpu_memory.h"

namespace keyhole {
namespace {

constexpr Device kGpu{Device::Kind::cuda, 0};

struct Case {
  const char* pattern;
  int64_t batch, heads, length, head_dim;
  DType dtype;
};

// The lengths and patterns of the anchors, and fp32 for the simple kernel.
constexpr Case kCases[] = {
    {"dense", 4, 16, 4096, 128, DType::bf16},
    {"causal", 4, 16, 4096, 128, DType::bf16},
    {"dense", 1, 16, 16384, 128, DType::bf16},
    {"causal", 1, 16, 16384, 128, DType::bf16},
    {"dense", 2, 16, 16384, 64, DType::bf16},
    {"causal", 2, 16, 16384, 64, DType::bf16},
    {"dense", 1, 16, 4096, 256, DType::bf16},
    {"dense", 1, 16, 4096, 64, DType::f32},
    {"dense", 1, 16, 4096, 128, DType::f32},
    {"causal & window(4095)", 1, 16, 16384, 128, DType::bf16},
    {"causal & window(1023)", 1, 16, 16384, 128, DType::bf16},
    {"causal & (window(1023) | sinks(4))", 1, 16, 16384, 128, DType::bf16},
    {"streaming(16, 64)", 1, 16, 16384, 128, DType::bf16},
    {"causal & blocks(16)", 1, 16, 16384, 128, DType::bf16},
    {"causal & blocks(1024)", 1, 16, 16384, 128, DType::bf16},
    {"bigbird(128, 3, 3, 2, 1)", 1, 16, 16384, 128, DType::bf16},
    {"causal & window(4095) & dilated(8)", 1, 16, 16384, 128, DType::bf16},
    {"causal & window(4095)", 1, 16, 131072, 128, DType::bf16},
    {"causal & window(1023)", 1, 16, 131072, 128, DType::bf16},
    {"causal & (window(1023) | sinks(4))", 1, 16, 131072, 128, DType::bf16},
    {"streaming(16, 64)", 1, 16, 131072, 128, DType::bf16},
    {"causal & blocks(16)", 1, 16, 131072, 128, DType::bf16},
    {"causal & blocks(1024)", 1, 16, 131072, 128, DType::bf16},
    {"bigbird(128, 3, 3, 2, 1)", 1, 16, 131072, 128, DType::bf16},
    {"causal & window(4095) & dilated(8)", 1, 16, 131072, 128, DType::bf16},
    {"causal", 1, 16, 131072, 128, DType::bf16},
};

// Normal numbers in the dtype, one megabyte of them repeated: the values matter to the power drawn,
// not their period.
GpuMemory random_memory(int64_t elements, DType dtype, uint64_t seed) {
  const int64_t bytes = elements * bytes_of(dtype);
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<unsigned char> piece(size_t(std::min<int64_t>(bytes, int64_t{1} << 20)));
  for (size_t i = 0; i + size_t(bytes_of(dtype)) <= piece.size(); i += size_t(bytes_of(dtype))) {
    const float x = normal(engine);
    const uint16_t half = dtype == DType::bf16 ? to_bf16(x).bits : to_f16(x).bits;
    if (dtype == DType::f32) {
      std::memcpy(&piece[i], &x, 4);
    } else {
      std::memcpy(&piece[i], &half, 2);
    }
  }
  GpuMemory memory(kGpu, bytes);
  for (int64_t at = 0; at < bytes; at += int64_t(piece.size())) {
    check_cuda(cudaMemcpy(static_cast<char*>(memory.data()) + at, piece.data(),
                          size_t(std::min<int64_t>(bytes - at, int64_t(piece.size()))),
                          cudaMemcpyHostToDevice),
               "filling a tensor");
  }
  return memory;
}

struct Tensor {
  GpuMemory memory;
  TensorView view;
  Tensor(std::initializer_list<int64_t> shape, DType dtype, uint64_t seed)
      : view(nullptr, dtype, shape) {
    memory = random_memory(view.num_elements(), dtype, seed);
    view.data = memory.data();
    view.device = kGpu;
  }
};

double median_ms(auto call) {
  cudaEvent_t begin = nullptr, end = nullptr;
  check_cuda(cudaEventCreate(&begin), "timing");
  check_cuda(cudaEventCreate(&end), "timing");
  std::vector<float> times;
  const auto once = [&] {
    check_cuda(cudaEventRecord(begin), "timing");
    call();
    check_cuda(cudaEventRecord(end), "timing");
    check_cuda(cudaEventSynchronize(end), "timing");
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, begin, end), "timing");
    return ms;
  };
  float warm = 0;
  for (int i = 0; i < 3; ++i) warm = once();
  const int runs = warm > 100 ? 3 : 15;
  for (int i = 0; i < runs; ++i) times.push_back(once());
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void run(const Case& c, const std::string& backend) {
  const Plan made = plan(parse(c.pattern), c.length, c.length);
  const double pairs = double(made.explain().pairs) * double(c.batch * c.heads);
  Tensor q({c.batch, c.heads, c.length, c.head_dim}, c.dtype, 1);
  Tensor k({c.batch, c.heads, c.length, c.head_dim}, c.dtype, 2);
  Tensor v({c.batch, c.heads, c.length, c.head_dim}, c.dtype, 3);
  Tensor out({c.batch, c.heads, c.length, c.head_dim}, c.dtype, 4);
  Tensor lse({c.batch, c.heads, c.length}, DType::f32, 5);
  AttentionOptions options;
  options.backend = backend;
  const double forward = median_ms(
      [&] { attention_forward(q.view, k.view, v.view, made, out.view, lse.view, options); });
  const double flops = 4 * pairs * double(c.head_dim);
  std::printf("%-36s %dx%dx%-6d d%-3d %-4s %-38s fwd %9.3f ms %6.1f TF", c.pattern, int(c.batch),
              int(c.heads), int(c.length), int(c.head_dim), to_string(c.dtype),
              kernel_for_forward(q.view, v.view, made, options).c_str(), forward,
              flops / forward * 1e-9);
  std::fflush(stdout);
  Tensor dout({c.batch, c.heads, c.length, c.head_dim}, c.dtype, 6);
  Tensor dq({c.batch, c.heads, c.length, c.head_dim}, c.dtype, 7);
  Tensor dk({c.batch, c.heads, c.length, c.head_dim}, c.dtype, 8);
  Tensor dv({c.batch, c.heads, c.length, c.head_dim}, c.dtype, 9);
  for (const bool deterministic : {false, true}) {
    options.deterministic = deterministic;
    const double backward = median_ms([&] {
      attention_backward(dout.view, q.view, k.view, v.view, out.view, lse.view, made,
                         {dq.view, dk.view, dv.view, {}}, options);
    });
    std::printf("  %s %9.3f ms %6.1f TF", deterministic ? "det" : "bwd", backward,
                2.5 * flops / backward * 1e-9);
    std::fflush(stdout);
  }
  std::printf("\n");
}

}  // namespace
}  // namespace keyhole

int main(int argc, char** argv) {
  using namespace keyhole;
  const std::string filter = argc > 1 ? argv[1] : "";
  const std::string backend = argc > 2 ? argv[2] : "auto";
  if (gpus().empty()) {
    std::printf("keyhole_gpu_kernels: nothing was timed: %s\n", why_no_gpu().c_str());
    return 0;
  }
  std::printf("%s\n", gpu(kGpu).name.c_str());
  for (const Case& c : kCases) {
    const std::string name = std::string(c.pattern) + " " + std::to_string(c.length) + " d" +
                             std::to_string(c.head_dim) + " " + to_string(c.dtype);
    if (name.find(filter) == std::string::npos) continue;
    try {
      run(c, backend);
    } catch (const Error& error) {
      std::printf("%s: %s\n", name.c_str(), error.what());
    }
  }
}
