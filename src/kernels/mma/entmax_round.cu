// src/kernels/mma/entmax_round.cu
// Two launches: the keys, whose largest lengths the margins need, then the queries. Eight lanes
// round a row.
#include "base/check.h"
#include "kernels/device/launch.h"
#include "kernels/device/row_blocks.cuh"
#include "kernels/mma/entmax_round.h"

namespace keyhole::mma {
namespace {

constexpr int32_t kRoundLanes = 8, kRoundedRows = 32;  // of a row; of a CTA
constexpr int32_t kMostRoundedCols = 128;
constexpr int32_t kRoundVectors = kMostRoundedCols / (4 * kRoundLanes);  // of a lane

__device__ __forceinline__ double sum_of_lanes(double x) {
#pragma unroll
  for (int32_t step = kRoundLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}
__device__ __forceinline__ uint32_t two_of(BFloat16 low, BFloat16 high) {
  return uint32_t{low.bits} | uint32_t{high.bits} << 16;
}

// Rounds the row of these lanes, if it is there. Rows that are not finite become NaN, if asked to.
template <bool kMarksNan>
__device__ __forceinline__ SquaredLengths round_row(bool is_there, const float* from,
                                                    __nv_bfloat16* to, int32_t cols) {
  const int32_t lane = int32_t(threadIdx.x) % kRoundLanes, end = is_there ? cols : 0;
  uint4 raw[kRoundVectors];
#pragma unroll
  for (int32_t i = 0; i < kRoundVectors; ++i) {
    raw[i] = device::load_vector(from, 4 * (kRoundLanes * i + lane), end);
  }
  SquaredLengths lengths;
  uint2 rounded[kRoundVectors];
#pragma unroll
  for (int32_t i = 0; i < kRoundVectors; ++i) {
    float x[4];
    device::convert<float>(raw[i], x);
    BFloat16 rounded_x[4];
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) {
      rounded_x[j] = rounded_for_products(x[j]);
      lengths.add(x[j], rounded_x[j]);
    }
    rounded[i] = {two_of(rounded_x[0], rounded_x[1]), two_of(rounded_x[2], rounded_x[3])};
  }
  lengths = {sum_of_lanes(lengths.whole), sum_of_lanes(lengths.rounded),
             sum_of_lanes(lengths.lost)};
  constexpr uint32_t kTwoNans = 0x7fff7fff;
  const bool is_marked = kMarksNan && !lengths.is_finite();
#pragma unroll
  for (int32_t i = 0; i < kRoundVectors; ++i) {
    const int32_t col = 4 * (kRoundLanes * i + lane);
    if (col >= end) continue;
    *reinterpret_cast<uint2*>(to + col) = is_marked ? uint2{kTwoNans, kTwoNans} : rounded[i];
  }
  return lengths;
}

// For numbers that are at least 0, in any order.
__device__ __forceinline__ void raise_to(float* to, float x) {
  atomicMax(reinterpret_cast<int*>(to), __float_as_int(x));
}

__global__ void __launch_bounds__(kRoundLanes* kRoundedRows)
    round_keys(const __grid_constant__ device::EntmaxParams p,
               const __grid_constant__ device::RoundedRows rounded) {
  __shared__ LargestKey largest;
  if (threadIdx.x == 0) largest = {};
  __syncthreads();
  const auto block = device::my_row_block<kRoundedRows>(p.sizes.kv_heads, p.sizes.k_len);
  const int32_t index = int32_t(threadIdx.x) / kRoundLanes;
  const bool is_there = index < block.count;
  const int64_t key = block.first + (is_there ? index : 0);
  const SquaredLengths lengths =
      round_row<true>(is_there, p.k.row<const float>(block.batch, block.head, key),
                      rounded.k.row<__nv_bfloat16>(block.batch, block.head, key), p.sizes.head_dim);
  if (is_there && threadIdx.x % kRoundLanes == 0 && lengths.is_finite()) {
    raise_to(&largest.rounded, not_less(sqrt(lengths.rounded)));
    raise_to(&largest.lost, not_less(sqrt(lengths.lost)));
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  raise_to(&rounded.largest[block.head_index].rounded, largest.rounded);
  raise_to(&rounded.largest[block.head_index].lost, largest.lost);
}

__global__ void __launch_bounds__(kRoundLanes* kRoundedRows)
    round_queries(const __grid_constant__ device::EntmaxParams p,
                  const __grid_constant__ device::RoundedRows rounded) {
  const auto block = device::my_row_block<kRoundedRows>(p.sizes.heads, p.sizes.q_len);
  const int32_t index = int32_t(threadIdx.x) / kRoundLanes;
  const bool is_there = index < block.count;
  const int64_t query = block.first + (is_there ? index : 0);
  const SquaredLengths lengths = round_row<false>(
      is_there, p.q.row<const float>(block.batch, block.head, query),
      rounded.q.row<__nv_bfloat16>(block.batch, block.head, query), p.sizes.head_dim);
  if (!is_there || threadIdx.x % kRoundLanes != 0) return;
  const int32_t kv_head = block.batch * p.sizes.kv_heads + p.sizes.kv_head_of(block.head);
  rounded.margin[block.head_index * p.sizes.q_len + query] =
      product_margin(lengths, rounded.largest[kv_head]);
}

}  // namespace

void launch_round_rows(const device::EntmaxParams& params, const device::RoundedRows& rounded,
                       cudaStream_t stream) {
  const device::Sizes& sizes = params.sizes;
  KEYHOLE_ASSERT(sizes.head_dim % 8 == 0 && sizes.head_dim <= kMostRoundedCols,
                 "entmax: rows to round with head_dim ", sizes.head_dim);
  const auto launch = [&](auto kernel, int64_t num_heads, int64_t length) {
    const uint32_t ctas = device::num_row_blocks<kRoundedRows>(num_heads, length);
    if (ctas == 0) return;
    device::launch("entmax, rounding q and k", kernel, {ctas, kRoundLanes * kRoundedRows, 0},
                   stream, params, rounded);
  };
  launch(round_keys, int64_t{sizes.batch} * sizes.kv_heads, sizes.k_len);
  launch(round_queries, sizes.num_heads(), sizes.q_len);
}

}  // namespace keyhole::mma
