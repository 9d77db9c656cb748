// src/kernels/mma/row_swizzle.cuh
#pragma once

#include <cstdint>

namespace keyhole::mma {

// Rows of 16-bit elements in shared memory, one after another. Inside a row the 16-byte chunks are
// permuted. A matrix load reads the same chunk of eight neighbouring rows at once; the swizzle puts
// these in eight different places of 128 bytes:
//   rows of a multiple of 128 bytes   chunk ^ row % 8
//   rows of 192 bytes                 chunk ^ row / 2 % 4     (odd rows begin in the middle of 128)
template <int kHeadDim>
struct RowSwizzle {
  static constexpr int row_bytes = 2 * kHeadDim;
  static constexpr bool is_plain = kHeadDim % 64 == 0;
  static constexpr int mask = is_plain ? 7 : 3;

  static __host__ __device__ constexpr uint32_t offset(uint32_t row, uint32_t chunk) {
    const uint32_t turn = is_plain ? row % 8 : row / 2 % 4;
    return row * row_bytes + (chunk ^ turn) * 16;
  }
  // From the address of chunk 0 or 1 to the one `chunks` (even) further, in the same row.
  static __host__ __device__ constexpr uint32_t further(uint32_t place, int chunks) {
    return (place ^ uint32_t((chunks & mask) * 16)) + uint32_t((chunks & ~mask) * 16);
  }
};

}  // namespace keyhole::mma
