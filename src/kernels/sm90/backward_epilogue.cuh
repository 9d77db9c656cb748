// src/kernels/sm90/backward_epilogue.cuh
// What becomes of dk and dv of an item. Mostly they are stored by TMA, from shared memory, while
// the warpgroup goes on with the next item. Short lists feel every instruction here.
#pragma once

#include "kernels/device/key_rows.cuh"
#include "kernels/device/math.cuh"
#include "kernels/sm90/backward_shared.cuh"
#include "kernels/sm90/tensor_maps.h"

namespace keyhole::sm90 {

// The place of a warpgroup's 64 rows in shared memory: panels of 64 columns in the layout of TMA's
// boxes, `apart` bytes from one to the next.
struct StagedRows {
  uint32_t at;
  uint32_t apart;
};

// Stages the rows in 16 bits. True when a value, as stored, is not finite.
template <class T, int kColumns>
__device__ __forceinline__ bool stage_rows(const float (&sum)[kColumns / 2], float scale,
                                           const StagedRows& to) {
  const uint32_t thread = device::thread_index() % kWarpgroup, lane = thread % 32;
  const uint32_t row = thread / 32 * 16 + lane % 16;
  const uint32_t mine = to.at + row * 128 + (lane / 16 ^ row % 8) * 16;
  uint32_t not_finite[2] = {};  // NaN in either half when any value is infinite or NaN
#pragma unroll
  for (int b = 0; b < kColumns / 16; ++b) {
    uint32_t four[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      four[i] = device::pack_two<T>(scale * sum[8 * b + 2 * i], scale * sum[8 * b + 2 * i + 1]);
      not_finite[i % 2] = device::add_zero_times<T>(four[i], not_finite[i % 2]);
    }
    store_matrices((mine ^ uint32_t(b % 4 * 32)) + uint32_t(b / 4) * to.apart, four);
  }
  return ((not_finite[0] | not_finite[1]) & 0x7fff7fff) != 0;
}

// Starts to store staged rows; one thread.
template <int kColumns>
__device__ __forceinline__ void store_rows(const RowMaps& maps, const StagedRows& from,
                                           const device::Work& work, int32_t first_row) {
  const ClassRows rows = maps.of_class(int32_t(work.residue.first_k));
  BoxAt at = {0, first_row, rows.class_at, work.kv_head, work.batch};
#pragma unroll
  for (int panel = 0; 64 * panel < kColumns; ++panel, at.column += kBoxColumns) {
    store_box(rows.map, from.at + uint32_t(panel) * from.apart, at);
  }
}

// The usual way is not possible: a chunk of a list stores its sums in a slot of its own, and query
// heads that share a kv head add theirs up.
template <class C>
__device__ __forceinline__ void add_sums(const BackwardParams& p, const device::Work& work,
                                         int first_row, const float (&sum)[C::head_dim / 2],
                                         float scale, int columns, float* slots, float* all_sums) {
  const device::KeyRows keys = device::key_rows<C::tile_k, C::tile_k>(p, work, 0);
  const device::KeySums sums =
      device::key_sums<C::tile_k, C::tile_k>(p, work, keys, 0, slots, all_sums, columns);
  const int lane = int(device::thread_index() % 32);
  const int row = first_row + int(device::thread_index() % kWarpgroup / 32) * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < C::head_dim / 2; i += 2) {
    sums.take(row + i / 2 % 2 * 8, i / 4 * 8, lane % 4 * 2, scale * sum[i], scale * sum[i + 1]);
  }
}

template <int kCount>
__device__ __forceinline__ bool all_finite(const float (&sum)[kCount]) {
  bool are = true;
#pragma unroll
  for (int i = 0; i < kCount; ++i) are = are && fabsf(sum[i]) < INFINITY;
  return are;
}

}  // namespace keyhole::sm90
