// course/02_flash_minimal/backward_gpu.cu [LENGTH]
// The backward pass on a GPU: weights are computed again from lse, tile by tile. One kernel serves
// two launches. For dq a CTA keeps 32 queries and goes through the keys; for dk and dv it keeps 32
// keys and goes through the queries. Nothing is added by two CTAs, so no atomics, and the same bits
// every time; the price is that q k' and dout v' are computed twice.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "common/gpu.h"
#include "common/tensors.h"
#include "exact_backward.h"

namespace {

constexpr int kHeadDim = 64, kPadded = kHeadDim + 1, kHeads = 4;
constexpr int kTile = 32, kWarps = 4, kRows = kTile / kWarps, kPerLane = kHeadDim / 32;

struct Tensors {  // all [heads, length, head_dim], but lse and delta: [heads, length]
  const float *q, *k, *v, *dout, *lse, *delta;
  float *dq, *dk, *dv;
  int length;
};

// delta = dout . out of each row. One warp for each row.
__global__ void compute_delta(const float* dout, const float* out, float* delta, int rows) {
  const int row = blockIdx.x * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  float sum = 0;
  for (int x = lane; x < kHeadDim; x += 32) {
    sum += dout[row * kHeadDim + x] * out[row * kHeadDim + x];
  }
  for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(~0u, sum, other);
  if (lane == 0) delta[row] = sum;
}

__device__ void load_tile(float (&tile)[kTile][kPadded], const float* rows, int first, int length) {
  for (int i = threadIdx.x; i < kTile * kHeadDim; i += kWarps * 32) {
    const int row = i / kHeadDim, x = i % kHeadDim;
    tile[row][x] = first + row < length ? rows[(first + row) * kHeadDim + x] : 0;
  }
}

// A pair needs two products: q . k and dout . v. Of the rows that stay, `a` and `b` are q and dout
// where queries stay, k and v where keys stay; of the rows that pass, it is the other way round.
template <bool keys_stay>
__global__ void gradients(Tensors t) {
  __shared__ float stay_a[kTile][kPadded], stay_b[kTile][kPadded];
  __shared__ float pass_a[kTile][kPadded], pass_b[kTile][kPadded];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first_stay = blockIdx.x * kTile;
  const std::size_t head = std::size_t{1} * blockIdx.y * t.length;
  const float scale = rsqrtf(kHeadDim);
  const float* const queries_a = t.q + head * kHeadDim;
  const float* const queries_b = t.dout + head * kHeadDim;
  const float* const keys_a = t.k + head * kHeadDim;
  const float* const keys_b = t.v + head * kHeadDim;

  load_tile(stay_a, keys_stay ? keys_a : queries_a, first_stay, t.length);
  load_tile(stay_b, keys_stay ? keys_b : queries_b, first_stay, t.length);
  float sum_a[kRows][kPerLane] = {}, sum_b[kRows][kPerLane] = {};  // dq or dk; dv
  for (int first_pass = 0; first_pass < t.length; first_pass += kTile) {
    __syncthreads();  // all warps are done with the previous tile
    load_tile(pass_a, keys_stay ? queries_a : keys_a, first_pass, t.length);
    load_tile(pass_b, keys_stay ? queries_b : keys_b, first_pass, t.length);
    __syncthreads();  // the tiles have arrived

    float product_a[kRows] = {}, product_b[kRows] = {};  // of passing row `lane`: q . k, dout . v
    for (int x = 0; x < kHeadDim; ++x) {
      const float a = pass_a[lane][x], b = pass_b[lane][x];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        product_a[r] += stay_a[warp * kRows + r][x] * a;
        product_b[r] += stay_b[warp * kRows + r][x] * b;
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int stay = first_stay + warp * kRows + r, pass = first_pass + lane;
      const int query = keys_stay ? pass : stay;
      float weight = 0, dscore = 0;
      if (stay < t.length && pass < t.length) {
        weight = expf(scale * product_a[r] - t.lse[head + query]);
        dscore = scale * weight * (product_b[r] - t.delta[head + query]);
      }
      for (int j = 0; j < kTile; ++j) {  // dq += dscore k, or dk += dscore q and dv += weight dout
        const float ds = __shfl_sync(~0u, dscore, j), w = __shfl_sync(~0u, weight, j);
#pragma unroll
        for (int i = 0; i < kPerLane; ++i) {
          sum_a[r][i] += ds * pass_a[j][lane + 32 * i];
          if (keys_stay) sum_b[r][i] += w * pass_b[j][lane + 32 * i];
        }
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = first_stay + warp * kRows + r;
    if (row >= t.length) break;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const std::size_t at = (head + row) * kHeadDim + lane + 32 * i;
      (keys_stay ? t.dk : t.dq)[at] = sum_a[r][i];
      if (keys_stay) t.dv[at] = sum_b[r][i];
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  const int length =
      count > 1 ? std::max(1, std::atoi(arguments[1])) : 300;  // the last tiles are not full
  course::need_gpu();
  const course::Exact exact(kHeads, length, kHeadDim);
  course::GpuArray<float> q(exact.q), k(exact.k), v(exact.v), dout(exact.dout), out(exact.out);
  course::GpuArray<float> lse(exact.lse), delta(lse.size()), dq(q.size()), dk(q.size()),
      dv(q.size());
  for (auto* result : {&delta, &dq, &dk, &dv}) result->poison();
  const Tensors t = {q.data(),     k.data(),  v.data(),  dout.data(), lse.data(),
                     delta.data(), dq.data(), dk.data(), dv.data(),   length};
  const int rows = kHeads * length, threads = kWarps * 32;
  const dim3 grid((length + kTile - 1) / kTile, kHeads);
  const auto time = [](const char* name, double ms) { std::printf("%-22s %.3f ms\n", name, ms); };
  std::printf("%d heads of %d tokens, head_dim %d\n", kHeads, length, kHeadDim);
  time("delta", course::gpu_milliseconds([&] {
         compute_delta<<<(rows + kWarps - 1) / kWarps, threads>>>(t.dout, out.data(), delta.data(),
                                                                  rows);
       }));
  time("dq, queries stay",
       course::gpu_milliseconds([&] { gradients<false><<<grid, threads>>>(t); }));
  time("dk and dv, keys stay",
       course::gpu_milliseconds([&] { gradients<true><<<grid, threads>>>(t); }));
  std::printf("largest error: dq %.1e, dk %.1e, dv %.1e\n",
              course::largest_difference(dq.to_host(), exact.dq),
              course::largest_difference(dk.to_host(), exact.dk),
              course::largest_difference(dv.to_host(), exact.dv));
}
