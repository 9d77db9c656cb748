// src/kernels/sm90/entmax_mask.cuh
// The mask of a tile of 192 queries, as a thread of a consumer warpgroup needs it.
#pragma once

#include "kernels/sm90/entmax_scan_config.h"

namespace keyhole::sm90 {

template <class C>
struct TileMask {
  static constexpr int kWords = C::tile_k / 64;
  uint32_t bits[kWords];

  // Zeros for a full tile, which does not need them. thread: among the consumers.
  __device__ __forceinline__ void load(const TileView& view, int32_t bitmap, int thread) {
    constexpr uint32_t kWordsOfBitmap = kScanWarps * 32 * kWords;
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

}  // namespace keyhole::sm90
