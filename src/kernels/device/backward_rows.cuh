// src/kernels/device/backward_rows.cuh
// The row-wise parts of the backward pass, for every backend: delta and lse2 before the products;
// accumulators to gradients after them; the exact path; the gradient of the sink. Most rows are
// processed in blocks (row_blocks.cuh). On the exact path a warp takes single rows in a grid-stride
// loop.
#pragma once

#include "kernels/device/exact_backward.cuh"
#include "kernels/device/row_blocks.cuh"

namespace keyhole::device {

inline constexpr int32_t kRowWarps = 4;  // per CTA

// Calls visit(batch, head, index) for the rows [batch, heads, length] of this warp.
template <class Visit>
__device__ void for_each_row(int32_t batch, int32_t heads, int64_t length, Visit visit) {
  const int64_t rows = int64_t{batch} * heads * length;
  const int64_t warp = int64_t{blockIdx.x} * kRowWarps + threadIdx.x / 32;
  for (int64_t row = warp; row < rows; row += int64_t{gridDim.x} * kRowWarps) {
    const int64_t head_index = row / length;
    visit(int32_t(head_index / heads), int32_t(head_index % heads), row - head_index * length);
  }
}

// Accumulators to clear.
struct Clearing {
  uint4* to = nullptr;
  int64_t vectors = 0;
  uint32_t row_ctas = 0;  // CTAs of the launch that have rows
};
inline constexpr int64_t kClearedPerCta = 4096;  // vectors: 64 KiB
static __device__ __forceinline__ void clear_part(const Clearing& clearing, uint32_t part) {
  const int64_t first = int64_t{part} * kClearedPerCta;
  const auto count = int32_t(min(clearing.vectors - first, kClearedPerCta));
#pragma unroll 4
  for (int32_t i = int32_t(threadIdx.x); i < count; i += kBlockThreads) {
    clearing.to[first + i] = {};
  }
}

// delta = dout . out and lse2 = lse * log2(e). A row that attends to nothing must contribute
// nothing, whatever dout holds there: its lse2 becomes +inf, so that exp2(score - lse2) is 0. Its
// lse is -inf then, unless there is a sink: so a row whose delta is not finite is looked up in the
// plan.
//
// Neighbouring lanes share kRowsAtOnce neighbouring rows: as many as a row has vectors, rounded up
// to a power of two, and one for each of the rows at least. The same holds if rows cannot be read
// in vectors: the order of additions must not depend on alignment. The loads of all rows are on
// their way before the first arrives; at the end each of the first lanes has the sum of one row.
//
// The accumulators of the pass are cleared by CTAs of the same launch, which come last.
//
// Never launched early: the next launch reads lists and tensors without waiting for anything.
template <class Storage, BitmapLayout kLayout, bool kInVectors>
__global__ void __launch_bounds__(kBlockThreads)
    prepare_rows(const __grid_constant__ BackwardParams p, const __grid_constant__ DevicePlan plan,
                 float* delta, float* lse2, const __grid_constant__ Clearing clearing) {
  let_next_launch_begin();
  if (blockIdx.x >= clearing.row_ctas) {
    clear_part(clearing, blockIdx.x - clearing.row_ctas);
    return;
  }
  constexpr int32_t kAtOnce = kVector<Storage>, kRowsAtOnce = 4;
  const RowBlock block = my_row_block(p.sizes.heads, p.sizes.q_len);
  const int32_t cols = p.sizes.v_head_dim, vectors = (cols + kAtOnce - 1) / kAtOnce;
  const int32_t lanes = vectors > 16            ? 32
                        : vectors < kRowsAtOnce ? kRowsAtOnce
                                                : 1 << (32 - __clz(vectors - 1));
  const int32_t lane = int32_t(threadIdx.x) % lanes;
  const Storage* dout = p.dout.row<Storage>(block.batch, block.head, block.first);
  const Storage* out = p.out.row<Storage>(block.batch, block.head, block.first);
  for (int32_t begin = 0; begin < block.count; begin += kRowsAtOnce * kBlockThreads / lanes) {
    const int32_t first = begin + int32_t(threadIdx.x) / lanes * kRowsAtOnce;
    const int32_t own = first + lane;
    const bool has_own = lane < kRowsAtOnce && own < block.count;
    const float lse =
        has_own ? *p.lse.row<float>(block.batch, block.head, block.first + own) : -INFINITY;
    float sums[kRowsAtOnce] = {};
    for (int32_t col = lane * kAtOnce; col < cols; col += lanes * kAtOnce) {
      uint4 left[kRowsAtOnce] = {}, right[kRowsAtOnce] = {};
#pragma unroll
      for (int32_t r = 0; r < kRowsAtOnce; ++r) {
        if (first + r >= block.count) continue;
        left[r] = load<Storage, kInVectors>(dout + (first + r) * p.dout.row_stride, col, cols);
        right[r] = load<Storage, kInVectors>(out + (first + r) * p.out.row_stride, col, cols);
      }
#pragma unroll
      for (int32_t r = 0; r < kRowsAtOnce; ++r) {
        float a[kAtOnce], b[kAtOnce];
        convert<Storage>(left[r], a);
        convert<Storage>(right[r], b);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) sums[r] += a[i] * b[i];
      }
    }
    float sum = 0;
#pragma unroll
    for (int32_t r = 0; r < kRowsAtOnce; ++r) {
      for (int32_t step = lanes / 2; step > 0; step /= 2) {
        sums[r] += __shfl_xor_sync(~0u, sums[r], step);
      }
      if (lane == r) sum = sums[r];
    }

    bool is_empty = lse == -INFINITY;
    const bool is_doubtful = has_own && !is_empty && !is_finite(sum);
    for (uint32_t left = __ballot_sync(~0u, is_doubtful); left != 0; left &= left - 1) {
      const int32_t doubtful = __shfl_sync(~0u, own, __ffs(int(left)) - 1);
      const bool attends_not =
          attends_to_nothing<kLayout>(plan, block.head_index, block.first + doubtful);
      if (own == doubtful) is_empty = attends_not;
    }
    if (!has_own) continue;
    const int64_t row = block.head_index * p.sizes.q_len + block.first + own;
    delta[row] = is_empty ? 0.f : sum;
    lse2[row] = is_empty ? INFINITY : lse * kLog2E;
  }
}

// The sink is a key with a given score and a value of 0: dsink = -sum of p_sink * delta over the
// rows of its head. One CTA per head, in a fixed order.
struct SinkParams {
  const float* delta = nullptr;  // [batch * heads][q_len]
  const float* lse2 = nullptr;
  const float* sink = nullptr;
  float* dsink = nullptr;
  int64_t sink_stride = 0, dsink_stride = 0;
};
inline constexpr int32_t kSinkThreads = 1024;
static __global__ void __launch_bounds__(kSinkThreads)
    sum_sink_gradients(const __grid_constant__ Sizes sizes, const __grid_constant__ SinkParams p) {
  __shared__ double sums[kSinkThreads];
  const int32_t head = int32_t(blockIdx.x), thread = int32_t(threadIdx.x);
  const double sink2 = double(p.sink[head * p.sink_stride]) * 1.4426950408889634;
  double sum = 0;
  for (int32_t batch = 0; batch < sizes.batch; ++batch) {
    const int64_t first = (int64_t{batch} * sizes.heads + head) * sizes.q_len;
    for (int64_t query = thread; query < sizes.q_len; query += kSinkThreads) {
      const double weight = exp2f(float(sink2 - double(p.lse2[first + query])));
      if (weight != 0) sum += weight * double(p.delta[first + query]);
    }
  }
  sums[thread] = sum;
  for (int32_t half = kSinkThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) sums[thread] += sums[thread + half];
  }
  if (thread == 0) p.dsink[head * p.dsink_stride] = float(0 - sums[0]);
}

// Accumulators to a gradient.
struct FinishParams {
  DeviceTensor to;
  const float* sums = nullptr;  // [batch * heads][length][cols]; null: zeros
  int64_t length = 0;
  int32_t heads = 0, cols = 0;
  int32_t* found_nonfinite = nullptr;
};
template <class Storage, bool kInVectors>
__global__ void __launch_bounds__(kBlockThreads)
    finish_gradient(const __grid_constant__ FinishParams p) {
  constexpr int32_t kAtOnce = kWidth<Storage, kInVectors>;
  const RowBlock block = my_row_block(p.heads, p.length);
  Storage* to = p.to.row<Storage>(block.batch, block.head, block.first);
  const float* sums = p.sums + (block.head_index * p.length + block.first) * p.cols;
  const int32_t vectors = p.cols / kAtOnce;
  bool is_good = true;
#pragma unroll 4
  for (int32_t i = int32_t(threadIdx.x); i < block.count * vectors; i += kBlockThreads) {
    const int32_t row = i / vectors, col = (i - row * vectors) * kAtOnce;
    float values[kAtOnce] = {};
    if (p.sums != nullptr) load_floats(sums + i * kAtOnce, values);
    is_good &= store_values<Storage, kInVectors>(to + row * p.to.row_stride + col, values);
  }
  if (!is_good) *p.found_nonfinite = 1;
}

template <class Storage>
__device__ bool row_is_finite(const Storage* row, int32_t cols) {
  bool is_good = true;
  for (int32_t col = int32_t(threadIdx.x % 32); col < cols; col += 32) {
    is_good = is_good && is_finite(value_of(row[col]));
  }
  return __all_sync(~0u, is_good);
}

// Finds the rows that are not finite and recomputes them. Almost always there are none.
template <class Storage, BitmapLayout kLayout>
__global__ void __launch_bounds__(32 * kRowWarps)
    recompute_rows(const __grid_constant__ BackwardParams p,
                   const __grid_constant__ DevicePlan plan) {
  await_launch_before();
  if (*p.found_nonfinite == 0) return;
  const Sizes& sizes = p.sizes;
  for_each_row(sizes.batch, sizes.heads, sizes.q_len,
               [&](int32_t batch, int32_t head, int64_t query) {
                 const Storage* dq = p.dq.row<Storage>(batch, head, query);
                 if (row_is_finite(dq, sizes.head_dim)) return;
                 exact_query_gradient<Storage, kLayout>(p, plan, batch, head, query);
               });
  for_each_row(sizes.batch, sizes.kv_heads, sizes.k_len,
               [&](int32_t batch, int32_t kv_head, int64_t key) {
                 const bool is_good =
                     row_is_finite(p.dk.row<Storage>(batch, kv_head, key), sizes.head_dim) &&
                     row_is_finite(p.dv.row<Storage>(batch, kv_head, key), sizes.v_head_dim);
                 if (is_good) return;
                 exact_key_gradient<Storage, kLayout>(p, plan, batch, kv_head, key);
               });
}

}  // namespace keyhole::device
