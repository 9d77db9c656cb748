// src/kernels/sm90/backward_shared.cuh
// What the warps of a CTA of the backward kernel share, and the roles among them: two warpgroups
// multiply, 64 keys each; a third one copies the queries of the steps to come, half of its warps q,
// half of them dout.
#pragma once

#include "kernels/device/key_rows.cuh"
#include "kernels/sm90/backward_config.h"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/stages.cuh"

namespace keyhole::sm90 {

using device::BackwardParams;

inline constexpr int kThreads = 3 * kWarpgroup, kMultipliers = 2 * kWarpgroup;
inline constexpr int kCopiers = kWarpgroup / 2;  // of one tensor
// What a thread may use: 168 registers are given to each of 384 threads.
inline constexpr int kMultiplierRegisters = 240, kCopierRegisters = 24;

// What the copiers leave for a step beside its rows.
struct Step {
  int32_t tile, bitmap;
};
// Where dq of a CTA's queries goes: to the sums or, where there are none, to dq itself. Elements,
// not pointers, of which ptxas would not know that they point to global memory.
struct DqRows {
  int64_t first;     // of the residue class
  int64_t row_step;  // between its queries; 0: sums lie in blocks
  int64_t num_q;     // of the class
};

template <class C>
struct KeysShared {
  alignas(1024) uint16_t k[C::tile_k * C::head_dim];
  uint16_t v[C::tile_k * C::head_dim];  // k and v: later dk and dv
  uint16_t q[C::stages][C::tile_q * C::head_dim], dout[C::stages][C::tile_q * C::head_dim];
  uint16_t ds[2][C::tile_k * C::tile_q];  // [key][query]; of this step and of the one before
  alignas(128) float dq_blocks[kMultipliers / 32][16 * 64];  // of each warp, on their way to memory
  float lse2[C::stages][C::tile_q], delta[C::stages][C::tile_q];
  Step step[C::stages];
  uint64_t is_full[C::stages], is_empty[C::stages];  // q, dout, lse2, delta, step
  DqRows dq;

  __device__ void init_barriers() {
    for (int i = 0; i < C::stages; ++i) {
      init_barrier(is_full[i], 2 * kCopiers);
      init_barrier(is_empty[i], kMultipliers / 32);
    }
  }
};

// A thread's share of the chunks of 16 bytes of a tile: neighbours take neighbours of a panel's
// row, kCount / 8 rows at a time. visit(r, c, offset): row `r` and chunk `c` after the thread's
// first one.
template <int kRows, int kColumns, int kCount>
struct ChunkShare {
  static constexpr int down = kCount / 8;
  static_assert(kRows % down == 0 && down % 8 == 0);
  const int row, chunk;
  __device__ __forceinline__ explicit ChunkShare(int thread) : row(thread / 8), chunk(thread % 8) {}

  template <class Visit>
  __device__ __forceinline__ void for_each(Visit visit) const {
    using Tile = Panels<kRows, kColumns>;
    const uint32_t first = Tile::offset(uint32_t(row), uint32_t(chunk));
#pragma unroll
    for (int r = 0; r < kRows; r += down) {
#pragma unroll
      for (int panel = 0; panel < Tile::count; ++panel) {
        visit(r, 8 * panel, first + uint32_t(panel * Tile::bytes + r * 128));
      }
    }
  }
};

// Starts to copy a tile; zeros where there are no rows or columns.
template <int kRows, int kColumns, int kCount, class T>
__device__ __forceinline__ void copy_tile(uint32_t smem, const device::TileRows<const T>& rows,
                                          int thread) {
  const ChunkShare<kRows, kColumns, kCount> share(thread);
  const T* from = rows.first + share.row * rows.step + share.chunk * 8;
  const int rows_below = rows.count - share.row, columns_beyond = rows.columns - share.chunk * 8;
  share.for_each([&](int r, int c, uint32_t offset) {
    device::copy_async_or_zeros(smem + offset, from + r * rows.step + c * 8,
                                r < rows_below && c * 8 < columns_beyond);
  });
}

// Writes a tile; true when a value of it is not finite.
template <int kRows, int kColumns, int kCount, class T>
__device__ __forceinline__ bool store_tile(uint32_t smem, const device::TileRows<T>& rows,
                                           int thread) {
  const ChunkShare<kRows, kColumns, kCount> share(thread);
  T* to = rows.first + share.row * rows.step + share.chunk * 8;
  bool found = false;
  share.for_each([&](int r, int c, uint32_t offset) {
    if (share.row + r >= rows.count || (share.chunk + c) * 8 >= rows.columns) return;
    const uint4 eight = device::load_shared_vector(smem + offset);
    *reinterpret_cast<uint4*>(to + r * rows.step + c * 8) = eight;
    found = found || device::has_nonfinite<T>(eight.x) || device::has_nonfinite<T>(eight.y) ||
            device::has_nonfinite<T>(eight.z) || device::has_nonfinite<T>(eight.w);
  });
  return found;
}

}  // namespace keyhole::sm90
