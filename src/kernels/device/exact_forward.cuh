// src/kernels/device/exact_forward.cuh
// The cold path of the forward pass: one row by one warp, in fp64, visiting only the pairs that
// attend. The kernels multiply whole tiles, and 0 x NaN is NaN, so rows that are not finite are
// recomputed here. A NaN that is not attended has no effect; an attended NaN or infinity gives what
// src/kernels/cpu/exact.cpp gives:
//   a NaN score           out and lse NaN
//   a score of +inf       out NaN, lse +inf
//   only scores of -inf   out 0 (0 x v), lse -inf
// Sums that only exceed the range of fp32 (scores of 1e38 and more) become finite again. Rows with
// an uncertain maximum (row_result.cuh) become right if one item has all their keys.
#pragma once

#include "kernels/device/bitmap.cuh"
#include "kernels/device/key_list.cuh"
#include "kernels/device/pair_gradient.cuh"
#include "kernels/device/ptx.cuh"
#include "kernels/device/row_target.cuh"
#include "kernels/device/work.cuh"

namespace keyhole::device {

// The score, in base 2.
template <class T>
__device__ double exact_score(const Sizes& sizes, const T* q, const T* k) {
  double dot = 0;
  int32_t x = 0;
  // In vectors if rows allow it: lanes read different keys, so every load is one request per lane.
  constexpr int32_t kVector = 16 / sizeof(T);
  if ((reinterpret_cast<uintptr_t>(q) | reinterpret_cast<uintptr_t>(k)) % 16 == 0) {
    for (; x + kVector <= sizes.head_dim; x += kVector) {
      struct alignas(16) Vector {
        T element[kVector];
      };
      const Vector of_q = *reinterpret_cast<const Vector*>(q + x);
      const Vector of_k = *reinterpret_cast<const Vector*>(k + x);
#pragma unroll
      for (int32_t i = 0; i < kVector; ++i) {
        dot += double(value_of(of_q.element[i])) * double(value_of(of_k.element[i]));
      }
    }
  }
  for (; x < sizes.head_dim; ++x) dot += double(value_of(q[x])) * double(value_of(k[x]));
  const auto rule = SoftmaxRule<ExactMath>::of(rule_of(sizes));
  return rule.score(rule.bend(dot));
}

// Calls visit(attends, key, score) for 32 columns of the work item at a time, one per lane, if any
// of them attends. The whole warp calls, and visit is called by the whole warp.
template <class T, BitmapLayout kLayout, class Visit>
__device__ void for_each_score(const ForwardParams& p, const Work& work, int32_t row, const T* q,
                               Visit visit) {
  const TileView& view = p.view;
  const int32_t lane = int32_t(thread_index() % 32);
  for (TileWalk walk(work); walk.is_valid(); walk.next()) {
    for (int32_t first = 0; first < view.tile.k; first += 32) {
      const int32_t col = first + lane;
      const int64_t index = int64_t{walk.tile()} * view.tile.k + col;
      const bool is_attended =
          col < view.tile.k && index < work.residue.num_k &&
          attends<kLayout>(view.bitmaps, walk.bitmap(), view.tile.q, view.tile.k, row, col);
      if (!__any_sync(~0u, is_attended)) continue;
      const int64_t key = work.residue.first_k + view.stride * index;
      double score = -INFINITY;
      if (is_attended) {
        score = exact_score(p.sizes, q, p.k.row<T>(work.batch, work.kv_head, key));
      }
      __syncwarp();
      visit(is_attended, key, score);
    }
  }
}

__device__ inline double warp_max(double x) {
#pragma unroll
  for (int32_t step = 16; step > 0; step /= 2) x = fmax(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

// The sum over the attended pairs of a row, not yet divided. Columns are distributed over the
// lanes.
struct ExactSum {
  static constexpr int32_t kSteps = 18;  // x 32 lanes = 576, the widest head
  float max2, total;
  double out[kSteps];

  template <class T>
  __device__ void store(const RowTarget<T>& target, int32_t cols) const {
    const int32_t lane = int32_t(thread_index() % 32);
#pragma unroll
    for (int32_t i = 0; i < kSteps; ++i) {
      const int32_t col = lane + 32 * i;
      if (col < cols) target.store(col, target.value(col, out[i]));
    }
  }
};

// for_each(visit) calls visit(attends, key, score) with one key per lane. It is called twice and
// must give the same keys. The whole warp calls, and visit is called by the whole warp.
template <class T, class Params, class ForEachScore>
__device__ ExactSum exact_sum(const Params& p, int32_t batch, int32_t kv_head,
                              ForEachScore for_each) {
  ExactSum sum = {};
  double top = -INFINITY;  // skips NaN
  for_each([&](bool, int64_t, double score) { top = fmax(top, score); });
  top = warp_max(top);
  // Subtracts the maximum as stored, rounded to fp32, so that sums of chunks and parts can be
  // combined. Not if rounding moved it so far that sums might exceed the range of fp32. If the
  // maximum is not finite nothing is subtracted, which gives what the definition says.
  constexpr double kFar = 16;  // from scores of 2^29 on
  sum.max2 = isfinite(top) && fabs(top) > FLT_MAX ? copysignf(FLT_MAX, float(top)) : float(top);
  const bool is_far = fabs(top - double(sum.max2)) > kFar;
  const double base = !isfinite(top) ? 0 : is_far ? top : double(sum.max2);

  double total = 0;
  for_each([&](bool is_attended, int64_t key, double score) {
    const double weight = is_attended ? exp2(score - base) : 0;
    total += weight;
    // Loads several rows before the first one is needed. One at a time, each would take a full
    // memory latency.
    constexpr int kRowsAtOnce = 4;
    for (uint32_t left = __ballot_sync(~0u, is_attended); left != 0;) {
      double his_weight[kRowsAtOnce];
      const T* v[kRowsAtOnce];  // null: there are no more
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r, left &= left - 1) {
        const int32_t from = left != 0 ? __ffs(int(left)) - 1 : 0;
        his_weight[r] = __shfl_sync(~0u, weight, from);
        const int64_t his_key = __shfl_sync(~0u, key, from);
        v[r] = left != 0 ? p.v.template row<T>(batch, kv_head, his_key) : nullptr;
      }
      const int32_t lane = int32_t(thread_index() % 32);
#pragma unroll
      for (int32_t i = 0; i < ExactSum::kSteps; ++i) {
        const int32_t col = lane + 32 * i;
        if (col >= p.sizes.v_head_dim) break;
        T of_row[kRowsAtOnce];
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; ++r) {
          if (v[r] != nullptr) of_row[r] = v[r][col];
        }
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; ++r) {
          if (v[r] != nullptr) sum.out[i] += his_weight[r] * double(value_of(of_row[r]));
        }
      }
    }
  });
  sum.total = float(warp_sum(total));
  return sum;
}

// Stores a complete row of this part. Its state must not have been overwritten yet.
template <class T, class Params>
__device__ void store_exactly(const Params& p, int32_t head_index, int64_t query,
                              const ExactSum& sum) {
  const RowFinish finish = finish_row(p, head_index, query, sum.max2, sum.total);
  const RowTarget<T> target = row_target<T>(p, head_index, query, finish);
  __syncwarp();  // all lanes have read the state's lse
  if (threadIdx.x % 32 == 0) store_lse(p, head_index, query, finish.lse2);
  sum.store(target, p.sizes.v_head_dim);
}

// Computes row `row` of the work item's tile (or chunk) and stores it where the item's result goes.
// The row's state must not have been overwritten yet. The whole warp calls. recompute_row is an
// out-of-line function, recompute_row_here is inlined.
template <class T, BitmapLayout kLayout>
__device__ __forceinline__ void recompute_row_here(const ForwardParams& p, const Work& work,
                                                   int32_t row) {
  const int64_t index = int64_t{work.row_tile} * p.view.tile.q + row;
  const int64_t query = work.residue.first_q + p.view.stride * index;
  const T* q = p.q.row<T>(work.batch, work.head, query);
  const ExactSum sum = exact_sum<T>(p, work.batch, work.kv_head, [&](auto visit) {
    for_each_score<T, kLayout>(p, work, row, q, visit);
  });
  if (work.slot < 0) return store_exactly<T>(p, work.head_index, query, sum);
  const int64_t place = slot_row(p, work.head_index, work.slot, row);
  if (threadIdx.x % 32 == 0) {
    p.slots.max[place] = sum.max2;
    p.slots.sum[place] = sum.total;
  }
  sum.store(slot_target<T>(p, place), p.sizes.v_head_dim);
}

template <class T, BitmapLayout kLayout>
__device__ __noinline__ void recompute_row(const ForwardParams& p, const Work& work, int32_t row) {
  recompute_row_here<T, kLayout>(p, work, row);
}

// The same for a row of key lists.
template <class T>
__device__ __noinline__ void recompute_gathered_row(const GatherForwardParams& p,
                                                    int32_t head_index, int64_t query) {
  const int32_t batch = head_index / p.sizes.heads, head = head_index % p.sizes.heads;
  const int32_t kv_head = p.sizes.kv_head_of(head);
  const T* q = p.q.row<T>(batch, head, query);
  const KeyList list =
      key_list(p.view, p.view.group_of_head(head_index), query / p.view.rows_per_list);
  const ExactSum sum = exact_sum<T>(p, batch, kv_head, [&](auto visit) {
    for (int32_t first = 0; first < list.count; first += 32) {
      const int32_t key = list.at(uint32_t(first) + threadIdx.x % 32);
      double score = -INFINITY;
      if (key >= 0) score = exact_score(p.sizes, q, p.k.row<T>(batch, kv_head, key));
      __syncwarp();
      visit(key >= 0, int64_t{key}, score);
    }
  });
  store_exactly<T>(p, head_index, query, sum);
}

}  // namespace keyhole::device
