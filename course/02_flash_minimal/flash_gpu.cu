// course/02_flash_minimal/flash_gpu.cu [LENGTH]
// FlashAttention's forward pass in one kernel of about 60 lines. A CTA takes 32 queries of one head
// and goes through all keys, 32 at a time; a warp takes 8 of the queries. Scores and weights never
// leave the registers.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "common/gpu.h"
#include "common/tensors.h"

namespace {

constexpr int kHeadDim = 64, kHeads = 8;
constexpr int kTile = 32;  // queries of a CTA; keys of a step, one for each lane of a warp
constexpr int kWarps = 4, kRows = kTile / kWarps;  // queries of a warp
constexpr int kPerLane = kHeadDim / 32;            // columns of out that a lane sums up

// A row of k is 65 floats apart from the next. With 64, the 32 lanes that read column x of 32 rows
// would all meet in one bank (bank_conflicts.cpp).
constexpr int kPadded = kHeadDim + 1;

__device__ float warp_max(float x) {
  for (int lane = 16; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, lane));
  return x;
}
__device__ float warp_sum(float x) {
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(~0u, x, lane);
  return x;
}

// Copies 32 rows to shared memory; rows beyond the end become 0.
template <int stride>
__device__ void load_tile(float (&tile)[kTile][stride], const float* rows, int first, int length) {
  for (int i = threadIdx.x; i < kTile * kHeadDim; i += kWarps * 32) {
    const int row = i / kHeadDim, x = i % kHeadDim;
    tile[row][x] = first + row < length ? rows[(first + row) * kHeadDim + x] : 0;
  }
}

__global__ void flash(const float* q, const float* k, const float* v, float* out, float* lse,
                      int length) {
  __shared__ float queries[kTile][kHeadDim], keys[kTile][kPadded], values[kTile][kHeadDim];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first_q = blockIdx.x * kTile;
  const std::size_t head = std::size_t{1} * blockIdx.y * length;  // its first row
  const float scale = rsqrtf(kHeadDim);

  load_tile(queries, q + head * kHeadDim, first_q, length);
  float max[kRows], sum[kRows] = {}, sums[kRows][kPerLane] = {};
  for (float& x : max) x = -INFINITY;

  for (int first_k = 0; first_k < length; first_k += kTile) {
    __syncthreads();  // all warps are done with the previous tile
    load_tile(keys, k + head * kHeadDim, first_k, length);
    load_tile(values, v + head * kHeadDim, first_k, length);
    __syncthreads();  // the tile has arrived, whichever threads brought it

    // Scores: lane j has the products of key j with the 8 queries of the warp.
    float score[kRows] = {};
    for (int x = 0; x < kHeadDim; ++x) {
      const float key = keys[lane][x];
#pragma unroll
      for (int r = 0; r < kRows; ++r) score[r] += queries[warp * kRows + r][x] * key;
    }

#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      // Online softmax. Lane 0 always has a key, so the maximum is a number.
      const float s = first_k + lane < length ? score[r] * scale : -INFINITY;
      const float new_max = fmaxf(max[r], warp_max(s));
      const float factor = expf(max[r] - new_max), weight = expf(s - new_max);
      max[r] = new_max;
      sum[r] = sum[r] * factor + warp_sum(weight);
      for (float& x : sums[r]) x *= factor;

      // out += weights . values: every lane needs all weights, and asks the lane that has each.
      for (int j = 0; j < kTile; ++j) {
        const float w = __shfl_sync(~0u, weight, j);
#pragma unroll
        for (int i = 0; i < kPerLane; ++i) sums[r][i] += w * values[j][lane + 32 * i];
      }
    }
  }

#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int query = first_q + warp * kRows + r;
    if (query >= length) break;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      out[(head + query) * kHeadDim + lane + 32 * i] = sums[r][i] / sum[r];
    }
    if (lane == 0) lse[head + query] = max[r] + logf(sum[r]);
  }
}

// Row i of a head by the definition, in fp64; returns its lse.
double exact_row(const float* q, const float* k, const float* v, int length, int i, double* out) {
  std::vector<double> weights(length);
  double sum = 0;
  for (int j = 0; j < length; ++j) {
    double product = 0;
    for (int x = 0; x < kHeadDim; ++x) product += double{q[i * kHeadDim + x]} * k[j * kHeadDim + x];
    weights[j] = std::exp(product / std::sqrt(double{kHeadDim}));
    sum += weights[j];
  }
  for (int j = 0; j < length; ++j) {
    for (int x = 0; x < kHeadDim; ++x) out[x] += weights[j] / sum * v[j * kHeadDim + x];
  }
  return std::log(sum);
}

}  // namespace

int main(int count, char** arguments) {
  const int length =
      count > 1 ? std::max(1, std::atoi(arguments[1])) : 2045;  // the last tiles are not full
  course::need_gpu();
  const std::size_t numbers = std::size_t{1} * kHeads * length * kHeadDim;
  const std::vector<float> q = course::random_values(numbers, 1);
  const std::vector<float> k = course::random_values(numbers, 2);
  const std::vector<float> v = course::random_values(numbers, 3);
  course::GpuArray<float> gpu_q(q), gpu_k(k), gpu_v(v), gpu_out(numbers), gpu_lse(kHeads * length);
  gpu_out.poison();
  gpu_lse.poison();
  const double ms = course::gpu_milliseconds([&] {
    flash<<<dim3((length + kTile - 1) / kTile, kHeads), kWarps * 32>>>(
        gpu_q.data(), gpu_k.data(), gpu_v.data(), gpu_out.data(), gpu_lse.data(), length);
  });

  const std::vector<float> out = gpu_out.to_host(), lse = gpu_lse.to_host();
  std::vector<float> row, row_lse;
  std::vector<double> exact, exact_lse;
  for (int i = 0; i < length; i += 47) {
    const std::size_t first = std::size_t{1} * (i % kHeads) * length;
    const auto begin = out.begin() + static_cast<std::ptrdiff_t>((first + i) * kHeadDim);
    row.insert(row.end(), begin, begin + kHeadDim);
    row_lse.push_back(lse[first + i]);
    exact.resize(row.size());
    exact_lse.push_back(exact_row(&q[first * kHeadDim], &k[first * kHeadDim], &v[first * kHeadDim],
                                  length, i, &exact[row.size() - kHeadDim]));
  }
  std::printf("%d heads of %d tokens, head_dim %d: %.3f ms\n", kHeads, length, kHeadDim, ms);
  std::printf("largest error: out %.1e, lse %.1e\n", course::largest_difference(row, exact),
              course::largest_difference(row_lse, exact_lse));
}
