// cli/gpu/sm90/peak.cu
#include <cuda_bf16.h>

#include "cli/gpu/burst.h"
#include "cli/gpu/measure.h"
#include "kernels/sm90/ptx.cuh"
#include "runtime/gpu.h"
#include "runtime/gpu_memory.h"

namespace keyhole::bench {
namespace {

// Two warpgroups an SM keep its tensor cores busy: while one waits for its products, the other's
// run. 64 x 256 is the widest product, and reads least of shared memory for a multiplication.
constexpr int kWarpgroups = 2, kThreads = kWarpgroups * sm90::kWarpgroup;
constexpr int kColumns = 256, kTerms = 64;  // of an operand's panel
constexpr int kProducts = 16;               // in a group
constexpr int kGroups = 1 << 10;            // two to three milliseconds
constexpr double kFlopsPerProduct = 2.0 * 64 * kColumns * 16;

__global__ void __launch_bounds__(kThreads) wgmma_burst(float* never) {
  __shared__ alignas(1024) uint32_t left[kWarpgroups][64 * kTerms / 2];
  __shared__ alignas(1024) uint32_t right[kColumns * kTerms / 2];
  // Two bf16 numbers near 0.008 a word, not all the same.
  for (int i = int(threadIdx.x); i < kWarpgroups * 64 * kTerms / 2; i += kThreads) {
    (&left[0][0])[i] = 0x3c003c01 + uint32_t(i % 32) + (uint32_t(i % 3) << 15);
  }
  for (int i = int(threadIdx.x); i < kColumns * kTerms / 2; i += kThreads) {
    right[i] = 0x3c083c09 + uint32_t(i % 32) + (uint32_t(i % 5) << 15);
  }
  sm90::publish_stores();
  __syncthreads();

  float sum[kColumns / 2] = {};
  const int warpgroup = __shfl_sync(~0u, int(threadIdx.x) / sm90::kWarpgroup, 0);
  const uint64_t a = sm90::operand(sm90::smem_address(left[warpgroup]), sizeof(left[0]));
  const uint64_t b = sm90::operand(sm90::smem_address(right), sizeof(right));
  for (int group = 0; group < kGroups; ++group) {
    sm90::begin_products();
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      sm90::Product<__nv_bfloat16>::of_shared<false, false, false>(
          sum, sm90::further(a, i % 4 * 32), sm90::further(b, i % 4 * 32));
    }
    sm90::commit_products();
    sm90::await_products<0>();
    sm90::is_ready(sum);
  }
  float all = 0;
#pragma unroll
  for (const float one : sum) all += one;
  if (all == kNeverASum) *never = all;
}

}  // namespace

double measure_wgmma_gflops(const Device& device) {
  const GpuMemory never(device, sizeof(float));
  const int ctas = gpu(device).num_processors;
  const double ms = best_ms(device, [&] {
    wgmma_burst<<<unsigned(ctas), kThreads>>>(static_cast<float*>(never.data()));
    check_cuda(cudaGetLastError(), "measuring the peak of the tensor cores");
  });
  return double(ctas) * kWarpgroups * kGroups * kProducts * kFlopsPerProduct / (ms * 1e6);
}

}  // namespace keyhole::bench
