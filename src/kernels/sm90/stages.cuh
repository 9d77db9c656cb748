// src/kernels/sm90/stages.cuh
// The layout of tiles in shared memory.
#pragma once

#include "kernels/mma/waits.cuh"
#include "kernels/sm90/ptx.cuh"

namespace keyhole::sm90 {

using mma::PipelineState;
using mma::Waits;

// A tile in shared memory: panels of 64 columns of 16 bits, the layout of wgmma (ptx.cuh). The last
// one may be partly unused.
template <int kRows, int kColumns>
struct Panels {
  static constexpr int bytes = kRows * 128;  // of a panel
  static constexpr int count = (kColumns + 63) / 64;
  static_assert(kRows % 8 == 0 && kColumns % 16 == 0);
};

// Starts the TMA copies of a tile. The barrier must already expect its bytes.
template <class Tile>
__device__ __forceinline__ void copy_tile(const unsigned char* to, const CUtensorMap* map,
                                          uint64_t& barrier, BoxAt at) {
#pragma unroll
  for (int panel = 0; panel < Tile::count; ++panel, at.column += 64) {
    copy_box(smem_address(to) + uint32_t(panel * Tile::bytes), map, barrier, at);
  }
}

}  // namespace keyhole::sm90
