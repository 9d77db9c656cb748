// src/kernels/device/row_target.cuh
// Where the result of one row goes: to out and lse in the last part of the plan, to the row's state
// before that, to a slot if its list is split into chunks.
#pragma once

#include <cfloat>

#include "kernels/device/convert.cuh"
#include "kernels/device/params.h"
#include "kernels/device/row_result.cuh"

namespace keyhole::device {

template <class T>
struct RowTarget {
  float factor, state_factor;  // of the row not yet divided, and of `before`
  const float* before;         // [v_head_dim] the result of earlier parts; null: none
  float* wide;                 // [v_head_dim] the state or slot to write; null: write `out`
  T* out;                      // [v_head_dim]

  template <class Number>  // float or double
  __device__ float value(int32_t col, Number undivided) const {
    const Number own = Number(factor) * undivided;
    if (before == nullptr) return float(own);
    return float(own + Number(state_factor) * Number(before[col]));
  }
  __device__ void store(int32_t col, float value) const {
    if (wide != nullptr) {
      wide[col] = value;
    } else {
      out[col] = stored_as<T>(value);
    }
  }
  // Columns [col, col + 4) of `cols`. in_vectors: is_in_vectors<T>(out, cols).
  __device__ void store_four(int32_t col, int32_t cols, const float (&values)[4],
                             bool in_vectors) const {
    if (wide != nullptr) {
      device::store_four(wide, col, cols, values, in_vectors);
    } else {
      device::store_four(out, col, cols, values, in_vectors);
    }
  }
};

// The target of a complete row of this part.
template <class T, class Params>
__device__ RowTarget<T> row_target(const Params& p, int32_t head_index, int64_t query,
                                   const RowFinish& finish) {
  float* state = p.states.out == nullptr
                     ? nullptr
                     : p.states.out + (int64_t{head_index} * p.sizes.q_len + query) *
                                          int64_t{p.sizes.v_head_dim};
  const int32_t batch = head_index / p.sizes.heads, head = head_index % p.sizes.heads;
  return {finish.factor, finish.state_factor, p.is_first ? nullptr : state,
          p.is_last ? nullptr : state, p.out.template row<T>(batch, head, query)};
}
template <class Params>
__device__ void store_lse(const Params& p, int32_t head_index, int64_t query, float lse2) {
  const int32_t batch = head_index / p.sizes.heads, head = head_index % p.sizes.heads;
  if (!p.is_last) {
    p.states.lse[int64_t{head_index} * p.sizes.q_len + query] = lse2;
  } else if (p.lse.data != nullptr) {
    // FLT_MAX stands for scores beyond the range of fp32 (exact_forward.cuh).
    *p.lse.template row<float>(batch, head, query) = lse2 == FLT_MAX ? INFINITY : lse2 * kLn2;
  }
}

// A row of a chunk: row `row` of its tile, not divided.
__device__ inline int64_t slot_row(const ForwardParams& p, int32_t head_index, int32_t slot,
                                   int32_t row) {
  return (int64_t{head_index} * p.view.work.slots_per_group + slot) * p.view.tile.q + row;
}
template <class T>
__device__ RowTarget<T> slot_target(const ForwardParams& p, int64_t slot_row) {
  return {1, 0, nullptr, p.slots.out + slot_row * p.sizes.v_head_dim, nullptr};
}

}  // namespace keyhole::device
