// course/03_flash_fast/softmax.h
// Online softmax on the accumulators of the tensor cores, for steps 3 to 7.
//
// mma.sync and wgmma deal out the 16 rows of a warp in the same way: a lane has elements of rows
// r = lane / 4 and r + 8. Element i = 4 * j + 2 * h + e is in row r + 8 * h and column
// 8 * j + 2 * (lane % 4) + e. So four neighbouring lanes share two rows, and i / 2 % 2 tells which.
#pragma once

#include "problem.h"

namespace course {

// The two rows of a lane. `top` is the maximum so far in units of log2, `sum` the sum of weights
// in this lane's columns: the four lanes of a row add theirs up at the end.
struct Rows {
  float top[2] = {-INFINITY, -INFINITY};
  float sum[2] = {};
};

// 2^x, as the hardware has it: exp2f() adds instructions for tiny results, which nobody needs here.
__device__ __forceinline__ float exp2_fast(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
// Two floats as two bf16 in one register, the first one in the lower half.
__device__ __forceinline__ std::uint32_t pack(float low, float high) {
  std::uint32_t two;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
  return two;
}

// Raises the maxima to those of this tile. rescale: the factors for what was summed up before.
template <int kCount>
__device__ __forceinline__ void raise_tops(Rows& rows, const float (&scores)[kCount],
                                           float (&rescale)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float top[2] = {scores[2 * h], scores[2 * h + 1]};  // two chains: each waits half as long
#pragma unroll
    for (int i = 4 + 2 * h; i < kCount; i += 4) {
      top[0] = fmaxf(top[0], scores[i]);
      top[1] = fmaxf(top[1], scores[i + 1]);
    }
    float of_row = fmaxf(top[0], top[1]);
    of_row = fmaxf(of_row, __shfl_xor_sync(~0u, of_row, 1));
    of_row = fmaxf(of_row, __shfl_xor_sync(~0u, of_row, 2));
    const float raised = fmaxf(rows.top[h], of_row * kScaleLog2);
    rescale[h] = exp2_fast(rows.top[h] - raised);  // 0 for the first tile
    rows.top[h] = raised;
  }
}

// weights = 2^(scale * score - top), rounded to bf16, and the sums of a lane's two rows. Eight
// weights, of two neighbouring blocks of 8 columns, are just what a lane has to hold of the left
// operand of the next product: no exchange between lanes.
template <int kCount>
__device__ __forceinline__ void make_weights(std::uint32_t (&weights)[kCount / 8][4],
                                             float (&sum)[2], const float (&scores)[kCount],
                                             const Rows& rows) {
  float part[2][2] = {};
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {  // pairs
    const int h = i % 2;
    const float x = exp2_fast(scores[2 * i] * kScaleLog2 - rows.top[h]);
    const float y = exp2_fast(scores[2 * i + 1] * kScaleLog2 - rows.top[h]);
    part[h][0] += x;
    part[h][1] += y;
    weights[i / 4][i % 4] = pack(x, y);
  }
  sum[0] = part[0][0] + part[0][1];
  sum[1] = part[1][0] + part[1][1];
}

// The online softmax of one tile: weights, and the factors for the output so far.
template <int kCount>
__device__ __forceinline__ void online_softmax(std::uint32_t (&weights)[kCount / 8][4],
                                               const float (&scores)[kCount], Rows& rows,
                                               float (&rescale)[2]) {
  float sum[2];
  raise_tops(rows, scores, rescale);
  make_weights(weights, sum, scores, rows);
  rows.sum[0] = rows.sum[0] * rescale[0] + sum[0];
  rows.sum[1] = rows.sum[1] * rescale[1] + sum[1];
}

template <int kCount>
__device__ __forceinline__ void multiply(float (&out)[kCount], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) out[i] *= factor[i / 2 % 2];
}

// Divides by the sums and stores the 16 rows of a warp; `to` is the first of them.
__device__ __forceinline__ void store_rows(bf16* to, const float (&out)[kHeadDim / 2],
                                           const Rows& rows) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sum = rows.sum[h];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    const float factor = __fdividef(1, sum);
    auto* const row = reinterpret_cast<std::uint32_t*>(to + (lane / 4 + 8 * h) * kHeadDim);
#pragma unroll
    for (int j = 0; j < kHeadDim / 8; ++j) {
      const int i = 4 * j + 2 * h;
      row[4 * j + lane % 4] = pack(out[i] * factor, out[i + 1] * factor);
    }
  }
}

}  // namespace course
