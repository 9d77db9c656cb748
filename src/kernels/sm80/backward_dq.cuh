// src/kernels/sm80/backward_dq.cuh
// dq of a step in the kernel that keeps keys: dq = ds k, added to the fp32 sums in memory that all
// CTAs share.
#pragma once

#include "kernels/device/params.h"
#include "kernels/device/query_blocks.cuh"
#include "kernels/sm80/backward_config.h"
#include "kernels/sm80/backward_tiles.cuh"

namespace keyhole::sm80 {

using device::BackwardParams;

// The queries of the head that a CTA processes.
struct QueryRows {
  int64_t count;     // of the residue class
  int64_t first;     // its first query in lse2, delta and, if stored in rows, sums.dq
  int64_t dq_first;  // its first row in sums.dq, if stored in blocks
};

// A warp's part: `dq_rows` queries and `dq_columns` columns, in blocks of 16 that alternate between
// neighbouring warps.
template <class T, class C>
struct QueryGradients {
  using Shape = KeysShape<C>;
  static constexpr int kRows = Shape::dq_row_blocks, kBlocks = Shape::dq_blocks;
  float sum[kRows][kBlocks][4];

  // ds: [key][query], k: [key][column], both in shared memory
  __device__ __forceinline__ void make(const void* ds, const void* k, uint32_t thread) {
    const int lane = int(thread % 32);
    const auto left =
        Pieces<C::step_q>::by_columns(smem_address(ds), 0, first_row(thread) / 8, lane);
    const auto right =
        Pieces<C::head_dim>::by_rows(smem_address(k), 0, first_column(thread) / 8, lane);
    multiply<T, C::step_k, Sum::begin>(
        sum, [&](auto& to, int d, int m) { load_matrices_transposed(to, left.at(16 * d, 2 * m)); },
        [&](auto& to, int d, int n) {
          load_matrices_transposed(to, right.at(16 * d, n * 2 * Shape::dq_across));
        },
        Nothing());
  }

  // For sums in blocks, when no column is missing: adds slice `slot` of kSlots, to be interleaved
  // with other work. The sums also have rows past the last query. first: the step's first query,
  // inside its residue class.
  __device__ __forceinline__ void begin_adding(const BackwardParams& p, const QueryRows& queries,
                                               int64_t first, uint32_t thread) {
    to_ = p.sums.dq + (queries.dq_first + first + first_row(thread)) * C::head_dim +
          first_column(thread) * 16 + device::place_of_lane(int(thread % 32));
  }
  template <int kSlots>
  __device__ __forceinline__ void add_some(int slot) const {
    constexpr int kCount = kRows * kBlocks, kPerSlot = (kCount + kSlots - 1) / kSlots;
#pragma unroll
    for (int i = slot * kPerSlot; i < (slot + 1) * kPerSlot; ++i) {
      if (i >= kCount) break;
      const int m = i / kBlocks, n = i % kBlocks;
      device::add_to_block(to_ + 16 * (m * C::head_dim + column_of(n)), sum[m][n]);
    }
  }

  // For any columns, with sums in blocks or in rows.
  __device__ __forceinline__ void add_all(const BackwardParams& p, const QueryRows& queries,
                                          int64_t first, uint32_t thread) const {
    const bool in_blocks = p.dq_rows_per_class != 0;
    const int lane = int(thread % 32), head_dim = p.sizes.head_dim;
    const int rows = rows_left(queries.count, first, C::step_q);
#pragma unroll
    for (int i = 0; i < kRows * kBlocks; ++i) {
      const int m = i / kBlocks, n = i % kBlocks, row = first_row(thread) + 16 * m;
      const int column = first_column(thread) + column_of(n);
      if (column >= head_dim) continue;
      if (in_blocks) {
        device::add_to_block(p.sums.dq + (queries.dq_first + first + row) * head_dim + 16 * column +
                                 device::place_of_lane(lane),
                             sum[m][n]);
        continue;
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int r = row + 8 * h + lane / 4;
        const int64_t query = queries.first + p.view.stride * (first + r);
        add_to_global(p.sums.dq + query * head_dim + column + lane % 4 * 2,
                      p.sizes.scale * sum[m][n][2 * h], p.sizes.scale * sum[m][n][2 * h + 1],
                      r < rows);
      }
    }
  }

 private:
  static __device__ __forceinline__ int first_row(uint32_t thread) {
    return int(thread / 32) / Shape::dq_across * Shape::dq_rows;
  }
  static __device__ __forceinline__ int first_column(uint32_t thread) {
    return int(thread / 32) % Shape::dq_across * 16;
  }
  static __device__ constexpr int column_of(int n) {
    return n / 2 * 16 * Shape::dq_across + n % 2 * 8;
  }

  float* to_ = nullptr;  // this lane's, in its first block
};

}  // namespace keyhole::sm80
