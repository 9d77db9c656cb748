// cli/gpu/peak.cu
#include <algorithm>

#include "base/check.h"
#include "cli/gpu/burst.h"
#include "cli/gpu/measure.h"
#include "runtime/gpu.h"
#include "runtime/gpu_memory.h"

namespace keyhole::bench {
namespace {

constexpr int kThreads = 256, kCtasPerProcessor = 4;
constexpr int kRounds = 1 << 13;  // one to two milliseconds

// Eight chains of a warp and many warps hide the latency of a product.
constexpr int kMmaChains = 8;
constexpr double kFlopsPerMma = 2.0 * 16 * 8 * 16;

__global__ void __launch_bounds__(kThreads) mma_burst(float* never) {
#if __CUDA_ARCH__ >= 800
  float chain[kMmaChains][4] = {};
  // Two bf16 numbers near 0.008 a register, not the same in every lane.
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t a[4] = {0x3c003c01 + lane, 0x3c023c03 + lane, 0x3c04bc05 + lane,
                         0xbc063c07 + lane};
  const uint32_t b[2] = {0x3c08bc09 + lane, 0xbc0a3c0b + lane};
  for (int round = 0; round < kRounds; ++round) {
#pragma unroll
    for (int i = 0; i < kMmaChains; ++i) {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
          "{%8, %9}, {%0, %1, %2, %3};"
          : "+f"(chain[i][0]), "+f"(chain[i][1]), "+f"(chain[i][2]), "+f"(chain[i][3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kMmaChains; ++i) sum += chain[i][0] + chain[i][1] + chain[i][2] + chain[i][3];
  if (sum == kNeverASum) *never = sum;
#endif
}

constexpr int kFfmaChains = 16;

__global__ void __launch_bounds__(kThreads) ffma_burst(float* never, float factor, float term) {
  float chain[kFfmaChains];
#pragma unroll
  for (int i = 0; i < kFfmaChains; ++i) chain[i] = float(i + int(threadIdx.x));
  for (int round = 0; round < kRounds; ++round) {
#pragma unroll
    for (int i = 0; i < kFfmaChains; ++i) chain[i] = fmaf(chain[i], factor, term);
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kFfmaChains; ++i) sum += chain[i];
  if (sum == kNeverASum) *never = sum;
}

}  // namespace

double measure_mma_gflops(const Device& device) {
  KEYHOLE_ASSERT(gpu(device).compute_capability >= 80, "mma.sync of bf16 is there from sm_80 on");
  const GpuMemory never(device, sizeof(float));
  const int ctas = kCtasPerProcessor * gpu(device).num_processors;
  const double ms = best_ms(device, [&] {
    mma_burst<<<unsigned(ctas), kThreads>>>(static_cast<float*>(never.data()));
    check_cuda(cudaGetLastError(), "measuring the peak of the tensor cores");
  });
  return double(ctas) * (kThreads / 32) * kRounds * kMmaChains * kFlopsPerMma / (ms * 1e6);
}

double measure_ffma_gflops(const Device& device) {
  const GpuMemory never(device, sizeof(float));
  const int ctas = kCtasPerProcessor * gpu(device).num_processors;
  const double ms = best_ms(device, [&] {
    ffma_burst<<<unsigned(ctas), kThreads>>>(static_cast<float*>(never.data()), 0.999f, 0.001f);
    check_cuda(cudaGetLastError(), "measuring the peak of fp32");
  });
  return double(ctas) * kThreads * kRounds * kFfmaChains * 2 / (ms * 1e6);
}

double measure_copy_gbps(const Device& device) {
  const int64_t bytes = std::min(int64_t{1} << 30, gpu(device).memory_bytes / 16);
  const GpuMemory from(device, bytes), to(device, bytes);
  from.fill(1);
  const double ms = best_ms(device, [&] {
    check_cuda(
        cudaMemcpyAsync(to.data(), from.data(), size_t(bytes), cudaMemcpyDeviceToDevice, nullptr),
        "measuring the speed of the GPU's memory");
  });
  return 2 * double(bytes) / (ms * 1e6);
}

}  // namespace keyhole::bench
