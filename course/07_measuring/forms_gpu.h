// course/07_measuring/forms_gpu.h
// Attention in two forms on a GPU, with tensor cores but simple: three kernels that pass matrices
// of scores and weights through memory, and one kernel that does not. Dense, fp16.
#pragma once

#include <mma.h>

#include <cmath>
#include <cstddef>

namespace course {

namespace wmma = nvcuda::wmma;
inline constexpr int kLength = 2048, kDim = 64;
inline constexpr int kWarps = 4;         // of a CTA; each computes 16 queries
inline constexpr float kScale = 0.125f;  // 1 / sqrt(64)

// A warp multiplies two 16 x 16 matrices at once; a `fragment` is one matrix, spread over its
// lanes. Which lane holds which element is not documented. Where that matters, the matrix is
// written to shared memory first.
using Rows = wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major>;
using Keys = wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major>;
using ValueRows = wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major>;
using Sums = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;

// The first of this warp's 16 rows, counted over all heads. Grid: [kLength / 64, heads].
static __device__ size_t first_row() {
  return (size_t{blockIdx.y} * gridDim.x + blockIdx.x) * kWarps * 16 + threadIdx.x / 32 * 16;
}

static __device__ void clear(Sums (&sums)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) wmma::fill_fragment(sums[i], 0.0f);
}

static __device__ void load_queries(Rows (&queries)[4], const half* q) {
#pragma unroll
  for (int i = 0; i < 4; ++i) wmma::load_matrix_sync(queries[i], q + 16 * i, kDim);
}

static __device__ void make_scores(Sums& sums, const Rows (&queries)[4], const half* k) {
  wmma::fill_fragment(sums, 0.0f);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    Keys keys;
    wmma::load_matrix_sync(keys, k + 16 * i, kDim);
    wmma::mma_sync(sums, queries[i], keys, sums);
  }
  for (int e = 0; e < sums.num_elements; ++e) sums.x[e] *= kScale;
}

static __device__ void add_values(Sums (&sums)[4], const Rows& weights, const half* v) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    ValueRows values;
    wmma::load_matrix_sync(values, v + 16 * i, kDim);
    wmma::mma_sync(sums[i], weights, values, sums[i]);
  }
}

static __device__ void store_rows(const Sums (&sums)[4], half* out) {
  __shared__ __align__(32) float staging[kWarps][16 * kDim];
  float* mine = staging[threadIdx.x / 32];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    wmma::store_matrix_sync(mine + 16 * i, sums[i], kDim, wmma::mem_row_major);
  __syncwarp();
  for (int i = threadIdx.x % 32; i < 16 * kDim; i += 32) out[i] = __float2half(mine[i]);
}

static __global__ void scores(const half* q, const half* k, float* s) {
  const size_t row = first_row(), head = size_t{blockIdx.y} * kLength * kDim;
  Rows queries[4];
  load_queries(queries, q + row * kDim);
  for (int key = 0; key < kLength; key += 16) {
    Sums sums;
    make_scores(sums, queries, k + head + key * kDim);
    wmma::store_matrix_sync(s + row * kLength + key, sums, kLength, wmma::mem_row_major);
  }
}

// Each warp handles one row, each lane every 32nd score of it.
static __global__ void softmax(const float* s, half* p) {
  constexpr int kOwn = kLength / 32;
  const size_t row = size_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const size_t first = row * kLength + threadIdx.x % 32;
  float own[kOwn], top = -INFINITY, sum = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) top = fmaxf(top, own[i] = s[first + 32 * i]);
  for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
#pragma unroll
  for (int i = 0; i < kOwn; ++i) sum += own[i] = __expf(own[i] - top);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
#pragma unroll
  for (int i = 0; i < kOwn; ++i) p[first + 32 * i] = __float2half(own[i] / sum);
}

static __global__ void output(const half* p, const half* v, half* out) {
  const size_t row = first_row(), head = size_t{blockIdx.y} * kLength * kDim;
  Sums sums[4];
  clear(sums);
  for (int key = 0; key < kLength; key += 16) {
    Rows weights;
    wmma::load_matrix_sync(weights, p + row * kLength + key, kLength);
    add_values(sums, weights, v + head + key * kDim);
  }
  store_rows(sums, out + row * kDim);
}

// Walks over the keys twice: for the sum of each row, and again, with the scores computed anew, for
// weights that are final. Six FLOPs a pair and column instead of four, and no matrix in memory.
static __global__ void fused(const half* q, const half* k, const half* v, half* out) {
  __shared__ __align__(32) float tiles[kWarps][16 * 16];
  __shared__ __align__(32) half weights[kWarps][16 * 16];
  const size_t row = first_row(), head = size_t{blockIdx.y} * kLength * kDim;
  const int warp = threadIdx.x / 32, place = threadIdx.x % 32 * 8;  // two lanes share a row
  const float* const own = tiles[warp] + place;
  Rows queries[4], some_weights;
  Sums sums, rows[4];
  load_queries(queries, q + row * kDim);
  const auto next_scores = [&](int key) {
    __syncwarp();  // all lanes have read the scores of the keys before
    make_scores(sums, queries, k + head + key * kDim);
    wmma::store_matrix_sync(tiles[warp], sums, 16, wmma::mem_row_major);
    __syncwarp();
  };
  float top = -INFINITY, sum = 0;
  for (int key = 0; key < kLength; key += 16) {
    next_scores(key);
    const float before = top;
    for (int i = 0; i < 8; ++i) top = fmaxf(top, own[i]);
    sum *= __expf(before - top);
    for (int i = 0; i < 8; ++i) sum += __expf(own[i] - top);
  }
  const float highest = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
  sum *= __expf(top - highest);
  const float lse = highest + __logf(sum + __shfl_xor_sync(~0u, sum, 1));
  clear(rows);
  for (int key = 0; key < kLength; key += 16) {
    next_scores(key);
    for (int i = 0; i < 8; ++i) weights[warp][place + i] = __float2half(__expf(own[i] - lse));
    __syncwarp();
    wmma::load_matrix_sync(some_weights, weights[warp], 16);
    add_values(rows, some_weights, v + head + key * kDim);
  }
  store_rows(rows, out + row * kDim);
}

}  // namespace course
