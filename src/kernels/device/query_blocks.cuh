// src/kernels/device/query_blocks.cuh
// Sums of dq, stored in blocks of 16 queries x 8 columns. A block has the layout of a tensor-core
// accumulator, so a warp adds it to contiguous memory. In row order it would be eight separate
// pieces.
//   [batch * heads][classes][rows_per_class / 16][head_dim / 8][128], rows of a residue class in
//   order
// Blocks take as many floats as the rows they hold: row r of a class, r a multiple of 16, begins at
// r * head_dim. Only kernels and finish_queries.cu know this layout.
#pragma once

#include <cstdint>

namespace keyhole::device {

inline constexpr int32_t kBlockFloats = 128;

// Lane l holds elements e = 0, 1 in row l / 4, columns 2 * (l % 4) and the next one, and elements
// 2, 3 eight rows below. If one instruction adds four numbers, a lane's four elements are
// contiguous; otherwise the 32 lanes of one element are.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool kFourAtOnce = true;
#else
inline constexpr bool kFourAtOnce = false;
#endif
__device__ __forceinline__ int place_of_lane(int lane) { return kFourAtOnce ? 4 * lane : lane; }

// block: its first float, plus place_of_lane.
__device__ __forceinline__ void add_to_block(float* block, const float (&four)[4]) {
  if constexpr (kFourAtOnce) {
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(block),
                 "f"(four[0]), "f"(four[1]), "f"(four[2]), "f"(four[3])
                 : "memory");
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) atomicAdd(block + 32 * e, four[e]);
  }
}
__device__ __forceinline__ float4 load_from_block(const float* block) {
  if constexpr (kFourAtOnce) {
    return *reinterpret_cast<const float4*>(block);
  } else {
    return {block[0], block[32], block[64], block[96]};
  }
}

}  // namespace keyhole::device
