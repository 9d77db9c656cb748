// src/kernels/device/row_result.cuh
// How a row is finished: divided by its sum, combined with the result of earlier parts of the plan
// and, in the last part, with the sink.
#pragma once

#include <cfloat>
#include <cmath>

#include "kernels/device/params.h"
#include "kernels/device/ptx.cuh"

namespace keyhole::device {

// out = factor * (row not yet divided) + state_factor * (the row's state); lse2 belongs to it.
struct RowFinish {
  float factor, state_factor;
  float lse2;  // base 2; -inf: nothing attended
};

__device__ inline float log2_of_sum(float max2, float sum) {
  return sum == 0 ? -INFINITY : max2 + log2f(sum);
}

// 2^(x - top). `top` is the largest of all values that are combined; fmaxf skipped NaN. If the
// largest is +inf, the others weigh 0 and it weighs inf, so that its share is inf / inf = NaN and
// lse is +inf, as the definition says.
__device__ inline float weight_against(float x, float top) {
  if (x == -INFINITY) return 0;
  if (top == INFINITY) return x < INFINITY ? 0 : x;
  return exp2f(x - top);
}

// max2, sum: base-2 maximum of the row's scores and the sum of 2^(score - max2); (-inf, 0) when it
// attended to nothing in this part. Params: ForwardParams or GatherForwardParams.
template <class Params>
__device__ RowFinish finish_row(const Params& p, int32_t head_index, int64_t query, float max2,
                                float sum) {
  const float own = log2_of_sum(max2, sum);
  const float before =
      p.is_first ? -INFINITY : p.states.lse[int64_t{head_index} * p.sizes.q_len + query];
  const float sink = p.is_last && p.sink != nullptr
                         ? p.sink[head_index % p.sizes.heads * p.sink_stride] * kLog2E
                         : -INFINITY;
  const float top = fmaxf(fmaxf(own, before), sink);
  const float own_share = own == -INFINITY ? 0 : weight_against(max2, top);  // of each in `sum`
  const float before_share = weight_against(before, top);
  const float total = own_share * sum + before_share + weight_against(sink, top);
  // A share of 0 stays 0 whatever the total is: nothing attended, or the sink is not finite.
  return {own_share == 0 ? 0 : own_share / total, before_share == 0 ? 0 : before_share / total,
          top + log2f(total)};
}

// The row maximum is a rounded product. From this magnitude on it may be off by more than 4, and
// the largest weight by more than a factor of 16: fp16 begins to lose small weights, and later all
// of them. Such rows count as not finite and are recomputed.
inline constexpr float kUncertainBase = 1 << 26;

// The statistics of a row at the end of its list, final if the row is complete (no other chunk,
// part or sink).
struct RowEnd {
  float sum, max2;
  float reciprocal;  // of the sum; 0 for an empty row
  float lse2;        // -inf for an empty row
};

// Four lanes of a warp share the row, each with the sum of its own columns; all of them call.
// minus_base: FLT_MAX if the row attended to nothing.
__device__ __forceinline__ RowEnd end_row(float sum, float minus_base) {
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  if (minus_base != FLT_MAX && fabsf(minus_base) >= kUncertainBase) sum = NAN;
  const float max2 = minus_base == FLT_MAX ? -INFINITY : -minus_base;
  return {sum, max2, sum == 0 ? 0 : reciprocal_fast(sum), max2 + log2_fast(sum)};
}

}  // namespace keyhole::device
