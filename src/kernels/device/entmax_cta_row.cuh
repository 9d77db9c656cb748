// src/kernels/device/entmax_cta_row.cuh
// One row of entmax or top_k by all warps of a CTA, in fp32. Each warp has a share of the keys, and
// treats it as a row of its own: it scans it into a list of its own (entmax_row.cuh). What weighs
// nothing there weighs nothing in the row. Then the warps join:
//
//   bounds   the best of all shares; lists drop what is below
//   top_k    of all lists
//   lambda   sums over all lists
//   out      the sum of all shares'
//
// The shares depend on the plan alone, and what warps have found is added up in their order, so
// results have the same bits in every run.
#pragma once

#include "kernels/device/entmax_row.cuh"
#include "kernels/device/gather_rows.cuh"

namespace keyhole::device {

inline constexpr int32_t kCtaWarps = 16;

// What a CTA has in shared memory. [i] is warp i's.
struct CtaMemory {
  RowMemory warps[kCtaWarps];
  RowBounds<float> bounds[kCtaWarps];
  EntmaxSums<float> sums[2][kCtaWarps];           // in turn
  int32_t listed[kCtaWarps], weighed[kCtaWarps];  // entries of a list, before lambda and after
};

// One number of each warp. The whole warp calls.
template <class Numbers>
__device__ auto of_warp_in_lane(Numbers number_of) {
  const int32_t lane = int32_t(threadIdx.x % 32);
  return lane < kCtaWarps ? number_of(lane) : decltype(number_of(lane)){};
}

template <class T>
struct CtaRow {
  CtaMemory& memory;
  const EntmaxRow<T>& row;  // with the share of this warp
  ScoreList<float> list;    // of this warp
  const int32_t warp = int32_t(threadIdx.x / 32), lane = int32_t(threadIdx.x % 32);

  // False: the row is not stored, because a share has more keys of weight than a list has room for,
  // or a score is not finite. All threads of the CTA call, here and below.
  __device__ __forceinline__ bool solve() const {
    const ScannedRow<float> scanned = scan(row, list);
    if (lane == 0) memory.bounds[warp] = scanned.bounds;
    if (!__syncthreads_and(scanned.kind == RowKind::listed)) return false;
    finish(scanned.count);
    return true;
  }

 private:
  // count: entries of this warp's list. Not inlined: the scan needs all registers.
  __device__ __noinline__ void finish(int32_t count) const {
    const RowBounds<float> bounds = best_bounds();
    count = list.keep(count, [&](bool is_there, float score, int32_t) {
      return is_there && score >= bounds.lowest;
    });
    if (row.p.top_k > 0) count = keep_top_keys_of_row(count);
    const float above = solve_lambda_of_row(count, bounds);
    store(keep_weights(count, bounds.top, above), bounds.top + above);
  }

  __device__ RowBounds<float> best_bounds() const {
    const RowBounds<float>& his = memory.bounds[lane % kCtaWarps];
    return {warp_largest(his.top), warp_largest(his.lambda), warp_largest(his.lowest)};
  }

  __device__ int32_t keep_top_keys_of_row(int32_t count) const {
    TopKeys<float> top =
        find_top_keys<float, CtaTeam>(row.p.top_k, row.p.sizes.k_len, memory.warps[0].histogram,
                                      [&](auto visit) { list.for_each(count, visit); });
    return list.keep(count, [&](bool is_there, float score, int32_t key) {
      return top.takes(is_there, score, key);
    });
  }

  // lambda - top; the same bits in every thread.
  __device__ float solve_lambda_of_row(int32_t count, const RowBounds<float>& bounds) const {
    const EntmaxParams& p = row.p;
    if (!(bounds.top >= -std::numeric_limits<float>::max())) return 0;  // no key, and no sink
    if (lane == 0) memory.listed[warp] = count;
    __syncthreads();
    const int32_t total = warp_sum(of_warp_in_lane([&](int32_t i) { return memory.listed[i]; }));
    const float own_sink = warp == 0 ? row.template sink<float>() : -INFINITY;
    int32_t turn = 0;
    return solve_lambda<float>(
        p.power, total + 1, fmaxf(bounds.lambda - bounds.top, 0), [&](float above) {
          const auto own = warp_entmax_sums(p.power, bounds.top, above, own_sink,
                                            [&](auto visit) { list.for_each(count, visit); });
          EntmaxSums<float>* const all = memory.sums[turn];
          turn = 1 - turn;  // the sums of this turn are read while those of the next are written
          if (lane == 0) all[warp] = own;
          __syncthreads();
          const auto his = of_warp_in_lane([&](int32_t i) { return all[i]; });
          return EntmaxSums<float>{warp_sum(his.weight), warp_sum(his.slope), warp_sum(his.count)};
        });
  }

  // Replaces the scores of the list by weights; returns how many are left.
  __device__ int32_t keep_weights(int32_t count, float top, float above) const {
    const auto rule = EntmaxRule<EntmaxMath<float>>::of(row.p.power);
    return list.keep(count, [&](bool is_there, float& score, int32_t) {
      score = is_there ? rule.terms((score - top) - above).weight : 0.f;
      return score != 0;
    });
  }

  __device__ void store(int32_t count, float lambda) const {
    const EntmaxParams& p = row.p;
    if (lane == 0) memory.weighed[warp] = count;
    add_values(count);
    __syncthreads();
    const int32_t his = of_warp_in_lane([&](int32_t i) { return memory.weighed[i]; });
    const int32_t total = warp_sum(his), before = warp_sum(lane < warp ? his : 0);
    if (total <= kSupportKeys) {
      for (int32_t i = lane; i < count; i += 32) {
        memory.warps[0].support[before + i] = list.entries[i].key;
      }
    }
    T* const out = p.out.row<T>(row.batch, row.head, row.query);
    for (int32_t col = int32_t(threadIdx.x); col < p.sizes.v_head_dim; col += 32 * kCtaWarps) {
      float sum = 0;
#pragma unroll
      for (int32_t i = 0; i < kCtaWarps; ++i) sum += memory.warps[i].q[col];
      out[col] = stored_as<T>(sum);
    }
    __syncthreads();
    if (warp != 0) return;  // the next row waits for warp 0 before it writes what is read here
    store_lambda(row, lambda);
    store_support(row, total);
  }

  // The weighted values of this warp's list, in place of its query, which is no longer needed.
  __device__ void add_values(int32_t count) const {
    using Gather = RowGather<T, 1, true>;
    const EntmaxParams& p = row.p;
    const T* const values = p.v.row<const T>(row.batch, row.kv_head, 0);
    const int64_t stride = p.v.row_stride;
    const int32_t cols = p.sizes.v_head_dim;
    for (int32_t first_col = 0; first_col < cols; first_col += Gather::kColumns) {
      typename Gather::Columns sum = {};
      for (int32_t first = 0; first < count; first += kGatherPlaces) {
        const int32_t place = first + place_of_lane();
        const bool is_there = place < count;
        const Scored<float> entry = is_there ? list.entries[place] : Scored<float>{0, -1};
        Gather::add(
            sum, [&](int32_t key) { return values + key * stride; }, first_col, cols, entry.key,
            entry.score, loads_for(is_there));
      }
      typename Gather::OwnColumns own = {};
      Gather::share(sum, own);
      Gather::store_sums(row.memory.q + first_col, 0, cols - first_col, own);
    }
  }
};

}  // namespace keyhole::device
