// src/kernels/sm90/exchange_blocks.cuh
// From sums as products leave them to pieces of rows as memory wants them.
#pragma once

#include "kernels/device/ptx.cuh"

namespace keyhole::sm90 {

// Lane c of four has columns 2 c and 2 c + 1 of four blocks of 8, packed. It gets all of block c.
__device__ __forceinline__ uint4 exchange_blocks(const uint32_t (&two)[4], int c) {
  const bool is_odd = c & 1, is_high = c & 2;
  const uint32_t x = __shfl_xor_sync(~0u, is_odd ? two[0] : two[1], 1);
  const uint32_t y = __shfl_xor_sync(~0u, is_odd ? two[2] : two[3], 1);
  const uint32_t a0 = is_odd ? x : two[0], a1 = is_odd ? two[1] : x;
  const uint32_t b0 = is_odd ? y : two[2], b1 = is_odd ? two[3] : y;
  const uint32_t from0 = __shfl_xor_sync(~0u, is_high ? a0 : b0, 2);
  const uint32_t from1 = __shfl_xor_sync(~0u, is_high ? a1 : b1, 2);
  return is_high ? uint4{from0, from1, b0, b1} : uint4{a0, a1, from0, from1};
}

}  // namespace keyhole::sm90
