// src/kernels/device/row_blocks.cuh
// Rows of [batch, heads, length], distributed to CTAs in blocks of neighbours of one head: a CTA
// does its divisions once, not once per row.
#pragma once

#include "base/int_math.h"
#include "kernels/device/convert.cuh"

namespace keyhole::device {

inline constexpr int32_t kBlockRows = 64, kBlockThreads = 128;

struct RowBlock {
  int32_t batch, head, head_index;  // head_index: batch * heads + head
  int64_t first;                    // inside its head
  int32_t count;
};
// CTAs that a launch over `num_heads` x `length` rows needs.
template <int32_t kRows = kBlockRows>
uint32_t num_row_blocks(int64_t num_heads, int64_t length) {
  const int64_t blocks =
      checked_mul(num_heads, ceil_div(length, int64_t{kRows}), "attention: blocks of rows");
  return uint32_t(narrow(blocks, "attention: blocks of rows"));
}
template <int32_t kRows = kBlockRows>
__device__ RowBlock my_row_block(int32_t heads, int64_t length) {
  const uint32_t per_head = uint32_t((length + kRows - 1) / kRows);
  const uint32_t head_index = blockIdx.x / per_head;
  const int64_t first = int64_t{blockIdx.x - head_index * per_head} * kRows;
  return {int32_t(head_index / uint32_t(heads)), int32_t(head_index % uint32_t(heads)),
          int32_t(head_index), first, int32_t(min(length - first, int64_t{kRows}))};
}

// Elements that a thread stores at a time.
template <class Storage, bool kInVectors>
inline constexpr int kWidth = kInVectors ? kVector<Storage> : 1;

// A vector of a row of `cols`, from `col` on; zeros past its end.
template <class Storage, bool kInVectors>
__device__ uint4 load(const Storage* row, int32_t col, int32_t cols) {
  return kInVectors ? load_vector(row, col, cols) : load_singly(row, col, cols);
}
// Neighbouring elements of a contiguous accumulator.
template <int kCount>
__device__ void load_floats(const float* at, float (&to)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    if constexpr (kCount % 4 == 0) {
      const float4 four = *reinterpret_cast<const float4*>(at + i);
      to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
    } else {
      to[i] = at[i];
    }
  }
}
// Stores kWidth neighbours; false if one of them is not finite as stored.
template <class Storage, bool kInVectors>
__device__ bool store_values(Storage* at, const float (&from)[kWidth<Storage, kInVectors>]) {
  constexpr int kCount = kWidth<Storage, kInVectors>;
  struct alignas(kCount * sizeof(Storage)) Elements {
    Storage elements[kCount];
  } all;
  bool is_good = true;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    all.elements[i] = stored_as<Storage>(from[i]);
    is_good = is_good && is_finite(value_of(all.elements[i]));
  }
  *reinterpret_cast<Elements*>(at) = all;
  return is_good;
}

}  // namespace keyhole::device
