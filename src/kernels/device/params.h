// src/kernels/device/params.h
// What the GPU backends pass to their launches: plain structs, by value. Made on the host from
// ForwardArgs and BackwardArgs; every pointer is a device pointer.
#pragma once

#include <cstdint>

#include "kernels/contract.h"

namespace keyhole::device {

// Rows of a tensor: the last dimension is contiguous, strides count elements.
struct DeviceTensor {
  void* data = nullptr;
  int64_t batch_stride = 0, head_stride = 0, row_stride = 0;

  template <class T>
  __host__ __device__ T* row(int64_t batch, int64_t head, int64_t index) const {
    return static_cast<T*>(data) + batch * batch_stride + head * head_stride + index * row_stride;
  }
};

// lse [batch, heads, q_len]: its last stride need not be 1 when the tensor is a slice.
using DeviceVector = DeviceTensor;  // element (batch, head, i) is *row<float>(batch, head, i)

// Sizes and factors that every launch of a call shares.
struct Sizes {
  int32_t batch = 1, heads = 1, kv_heads = 1;
  int32_t head_dim = 0, v_head_dim = 0;
  int64_t q_len = 0, k_len = 0;
  float scale = 1;    // of q . k
  float softcap = 0;  // 0: none

  __host__ __device__ int32_t num_heads() const { return batch * heads; }
  __host__ __device__ int32_t kv_head_of(int32_t head) const { return head / (heads / kv_heads); }
};

// The state of rows between the parts of a plan, [batch * heads][q_len]: the normalised output in
// fp32 and its base-2 lse (-inf: nothing attended yet).
struct RowStates {
  float* out = nullptr;  // [batch * heads][q_len][v_head_dim]
  float* lse = nullptr;  // [batch * heads][q_len]
};

// Partial results of the chunks of split lists: rows not yet divided, with base-2 maximum and sum.
//   slot s of head h holds tile.q rows from (h * slots_per_group + s) * tile.q on
struct Slots {
  float* out = nullptr;  // [batch * heads * slots_per_group][tile.q][v_head_dim]
  float* max = nullptr;  // [batch * heads * slots_per_group][tile.q]
  float* sum = nullptr;
};

// One launch over one part of a plan.
struct ForwardParams {
  Sizes sizes;
  DeviceTensor q, k, v, out;
  DeviceVector lse;             // data null: not requested
  const float* sink = nullptr;  // [heads], or null
  int64_t sink_stride = 1;
  TileView view;                         // the part
  RowStates states;                      // null pointers: the plan has one part
  bool is_first = true, is_last = true;  // among the parts of the plan
  Slots slots;                           // null pointers: no list of this part is split
  int32_t heads_per_section = 1;         // heads whose keys and values share the L2 cache
};

struct GatherForwardParams {
  Sizes sizes;
  DeviceTensor q, k, v, out;
  DeviceVector lse;
  const float* sink = nullptr;
  int64_t sink_stride = 1;
  GatherView view;
  RowStates states;
  bool is_first = true, is_last = true;
};

// The backward pass: fp32 accumulators for gradients that a launch does not write itself.
struct Accumulators {
  float* dq = nullptr;  // [batch * heads][q_len][head_dim]
  float* dk = nullptr;  // [batch * kv_heads][k_len][head_dim]
  float* dv = nullptr;  // [batch * kv_heads][k_len][v_head_dim]
};

// The sums of chunks of split transposed lists: slot s of head h holds tile.k rows from (h *
// slots_per_group + s) * tile.k on.
struct KeySlots {
  float* dk = nullptr;  // [batch * heads * slots_per_group][tile.k][head_dim]
  float* dv = nullptr;  // [batch * heads * slots_per_group][tile.k][v_head_dim]
};

struct BackwardParams {
  Sizes sizes;
  DeviceTensor dout, q, k, v, out, dq, dk, dv;
  DeviceVector lse;
  const float* delta = nullptr;  // [batch * heads][q_len]  rowsum(dout * out)
  const float* lse2 = nullptr;   // [batch * heads][q_len]  lse * log2(e); +inf for an empty row
  RuleNumbers<float> rule;       // of FastMath (math.cuh)
  TileView view;
  DqOrder dq_order = DqOrder::by_queries;  // whether the launch by key tile computes dq, and how
  Accumulators sums;                       // a null pointer: write the gradient itself
  KeySlots slots;                 // null pointers: no transposed list of this part is split
  int64_t dq_rows_per_class = 0;  // not 0: sums.dq is stored in blocks (query_blocks.cuh)
  // Of DqOrder::by_turns: how many work items were drawn; how many key tiles were added to each
  // query tile, [batch * heads][classes][q_tiles]; how many query heads were added to each half of
  // a key tile (of wide heads, to its dv and its dk), [batch * kv_heads][classes][k_tiles][2].
  // Zeros at first.
  int32_t* turns = nullptr;
  bool is_first = true, is_last = true;  // among the parts of the plan
  int32_t* found_nonfinite = nullptr;    // set to 1 by a launch that wrote a NaN or infinity
  int32_t heads_per_section = 1;
};

inline constexpr float kLog2E = float(keyhole::kLog2E);
inline constexpr float kLn2 = 0.6931471805599453f;

}  // namespace keyhole::device
