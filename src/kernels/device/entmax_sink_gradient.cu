// src/kernels/device/entmax_sink_gradient.cu
// The sink is a key with a given score and a value of 0: dsink = -sum of slope * delta over the
// rows of its head. One CTA per head, in a fixed order.
#include "kernels/device/check_cuda.h"
#include "kernels/device/entmax_pair.cuh"
#include "kernels/device/entmax_sink_gradient.h"

namespace keyhole::device {
namespace {

constexpr int32_t kSumThreads = 1024;

__global__ void __launch_bounds__(kSumThreads)
    sum_sink_gradients(const __grid_constant__ EntmaxBackwardParams p, float* dsink,
                       int64_t dsink_stride) {
  __shared__ double sums[kSumThreads];
  const EntmaxPairRule rule = EntmaxPairRule::of(p);
  const int32_t head = int32_t(blockIdx.x), thread = int32_t(threadIdx.x);
  double sum = 0;
  for (int32_t batch = 0; batch < p.sizes.batch; ++batch) {
    const int64_t first = (int64_t{batch} * p.sizes.heads + head) * p.sizes.q_len;
    for (int64_t query = thread; query < p.sizes.q_len; query += kSumThreads) {
      const float lambda = *p.lambda.row<const float>(batch, head, query);
      if (lambda == -INFINITY) continue;
      // Also where the slope is 0: a NaN of the row shows.
      sum += double(rule.sink_terms(p, head, lambda).slope) * double(p.delta[first + query]);
    }
  }
  sums[thread] = sum;
  for (int32_t half = kSumThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) sums[thread] += sums[thread + half];
  }
  if (thread == 0) dsink[head * dsink_stride] = float(0 - sums[0]);
}

}  // namespace

void launch_entmax_sink_gradient(const EntmaxBackwardParams& params, float* dsink,
                                 int64_t dsink_stride, cudaStream_t stream) {
  if (params.sizes.heads == 0) return;
  sum_sink_gradients<<<unsigned(params.sizes.heads), kSumThreads, 0, stream>>>(params, dsink,
                                                                               dsink_stride);
  check_cuda(cudaGetLastError(), "launching the gradient of the sink");
}

}  // namespace keyhole::device
