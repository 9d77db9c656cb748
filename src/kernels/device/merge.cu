// src/kernels/device/merge.cu
// One warp per row. Each of the two results is weighted by its sum of exponentials.
#include "base/int_math.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/merge.h"
#include "kernels/device/rows.cuh"

namespace keyhole::device {
namespace {

constexpr int32_t kMergedRowsPerCta = 8;

struct MergeParams {
  DeviceTensor into_out, from_out;
  DeviceVector into_lse, from_lse;
  int64_t heads = 0, length = 0, num_rows = 0;  // num_rows: of all heads and batch entries
  int32_t cols = 0;
};

// A row that attended to nothing has lse -inf and is neutral: the other side stays as it is, even a
// NaN.
struct Weights {
  float into, from, lse;
};
__device__ Weights weigh(float into, float from) {
  if (from == -INFINITY) return {into == -INFINITY ? 0.f : 1.f, 0, into};
  if (into == -INFINITY) return {0, 1, from};
  const float high = fmaxf(into, from);
  const float a = expf(into - high), b = expf(from - high);
  return {a / (a + b), b / (a + b), high + logf(a + b)};
}

template <class T>
__global__ void __launch_bounds__(32 * kMergedRowsPerCta)
    merge_rows(const __grid_constant__ MergeParams p) {
  const int64_t at = int64_t{blockIdx.x} * kMergedRowsPerCta + threadIdx.x / 32;
  if (at >= p.num_rows) return;  // for the whole warp
  const int64_t row = at % p.length, head = at / p.length % p.heads,
                batch = at / p.length / p.heads;
  const int32_t lane = int32_t(threadIdx.x % 32);
  float* const lse = p.into_lse.row<float>(batch, head, row);
  const Weights weights = weigh(*lse, *p.from_lse.row<float>(batch, head, row));
  __syncwarp();  // all lanes have read the lse
  if (lane == 0) *lse = weights.lse;
  T* const into = p.into_out.row<T>(batch, head, row);
  const T* const from = p.from_out.row<T>(batch, head, row);
  for (int32_t col = lane; col < p.cols; col += 32) {
    // A side without weight is skipped, not multiplied by 0: it may hold anything.
    float sum = 0;
    if (weights.into != 0) sum += weights.into * value_of(into[col]);
    if (weights.from != 0) sum += weights.from * value_of(from[col]);
    into[col] = stored_as<T>(sum);
  }
}

}  // namespace

void launch_merge(const TensorView& into_out, const TensorView& into_lse,
                  const TensorView& from_out, const TensorView& from_lse, cudaStream_t stream) {
  const int64_t* shape = into_out.shape;
  const MergeParams params{.into_out = device_tensor(into_out),
                           .from_out = device_tensor(from_out),
                           .into_lse = device_tensor(into_lse),
                           .from_lse = device_tensor(from_lse),
                           .heads = shape[1],
                           .length = shape[2],
                           .num_rows = shape[0] * shape[1] * shape[2],
                           .cols = narrow(shape[3], "merge: head_dim")};
  if (params.num_rows == 0) return;
  const uint32_t ctas =
      uint32_t(narrow(ceil_div(params.num_rows, int64_t{kMergedRowsPerCta}), "merge: CTAs"));
  with_device_storage(into_out.dtype, [&](auto storage) {
    merge_rows<decltype(storage)><<<ctas, 32 * kMergedRowsPerCta, 0, stream>>>(params);
  });
  check_cuda(cudaGetLastError(), "launching merge");
}

}  // namespace keyhole::device
