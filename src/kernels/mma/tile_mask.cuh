// src/kernels/mma/tile_mask.cuh
// The mask of a tile, as a thread of the warps needs it that have 16 of its rows each.
#pragma once

#include "base/bits.h"
#include "plan/view.h"

namespace keyhole::mma {

template <int kRows, int kCols>
struct TileMask {
  static constexpr int kWords = mma_lane_words(kCols);
  uint32_t bits[kWords];

  // Zeros for a full tile, which does not need them. thread: among those of the tile's rows.
  __device__ __forceinline__ void load(const TileView& view, int32_t bitmap, int thread) {
    constexpr uint32_t kWordsOfBitmap = mma_words(kRows, kCols);
    const uint32_t* const at = reinterpret_cast<const uint32_t*>(view.bitmaps) +
                               (uint64_t{uint32_t(bitmap)} * kWordsOfBitmap + thread * kWords);
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      bits[i] = 0;
      asm volatile("{\n.reg .pred p;\nsetp.ge.s32 p, %1, 0;\n@p ld.global.u32 %0, [%2];\n}"
                   : "+r"(bits[i])
                   : "r"(bitmap), "l"(at + i)
                   : "memory");
    }
  }
  // To products from the kFirst-th on.
  template <int kFirst = 0, int kCount>
  __device__ __forceinline__ void apply(float (&products)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int at = kFirst + i;
      products[i] = (bits[at / 32] >> at % 32 & 1) != 0 ? products[i] : -INFINITY;
    }
  }
};

}  // namespace keyhole::mma
