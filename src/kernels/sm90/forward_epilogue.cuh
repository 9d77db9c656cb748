// src/kernels/sm90/forward_epilogue.cuh
// The epilogue: 16 rows from a warp's accumulators to out and lse, to the state between parts, or
// to a slot. Most rows are complete (no other chunk, part or sink). With two stages of queries
// these take a fast path through shared memory and TMA. Short lists feel every instruction here.
#pragma once

#include "kernels/device/exact_forward.cuh"
#include "kernels/sm90/forward_shared.cuh"
#include "kernels/sm90/forward_softmax.cuh"
#include "kernels/sm90/tensor_maps.h"
#include "kernels/sm90/write_rows.cuh"

namespace keyhole::sm90 {

// Recomputes rows that are not finite; bit i: row first_row + i. Inlined: if a kernel calls a
// function, ptxas keeps nothing in uniform registers.
template <class T>
__device__ __forceinline__ void recompute(const ForwardParams& p, const WorkItem& item,
                                          int32_t first_row, uint32_t rows) {
  const device::Work work = device::work_of(p.sizes, p.view, item, item.head);
  for (; rows != 0; rows &= rows - 1) {
    device::recompute_row_here<T, BitmapLayout::mma>(p, work, first_row + __ffs(int(rows)) - 1);
  }
}

// The final statistics of a thread's two rows, if the rows are complete.
struct RowStatistics {
  device::RowEnd row[2];
};
__device__ __forceinline__ RowStatistics row_statistics(const Rows& rows) {
  return {{device::end_row(rows.sum[0], rows.minus_row_max[0]),
           device::end_row(rows.sum[1], rows.minus_row_max[1])}};
}

// The staging buffer of a warp's 16 rows: the place of its queries, which are not needed any more.
template <class C>
struct StagingBuffer {
  using Queries = typename ForwardShared<C>::Queries;
  uint32_t at;
  uint32_t mine;  // where this lane stores its 8 columns of block 0

  __device__ __forceinline__ explicit StagingBuffer(uint32_t at) : at(at) {
    const uint32_t lane = device::thread_index() % 32, row = lane % 16;
    mine = at + row * 128 + (lane / 16 ^ row % 8) * 16;
  }
  // Block b: 16 columns of all rows, in the accumulator layout.
  __device__ __forceinline__ void put(int b, const uint32_t (&four)[4]) const {
    store_matrices((mine ^ uint32_t(b % 4 * 32)) + uint32_t(b / 4 * Queries::bytes), four);
  }
};

// For complete rows.
__device__ __forceinline__ void store_lse(const ForwardParams& p, const PlannedResult& result,
                                          int32_t first_row, const RowStatistics& end) {
  const int lane = int(device::thread_index() % 32);
  if (p.lse.data == nullptr || lane % 4 != 0) return;
  const int64_t step = p.view.stride * p.lse.row_stride;
  const int32_t row = first_row + lane / 4;
  float* const to = static_cast<float*>(p.lse.data) + result.lse_at + row * step;
  if (row < result.num_rows) to[0] = end.row[0].lse2 * device::kLn2;
  if (row + 8 < result.num_rows) to[8 * step] = end.row[1].lse2 * device::kLn2;
}

// The fast path. False: the rows are incomplete or must be recomputed, and nothing was stored.
// True: TMA is copying out, and lane 0 must wait until the staging buffer has been read.
template <class T, class C>
__device__ __forceinline__ bool store_rows_at_once(const ForwardParams& p,
                                                   const PlannedItem& planned, int32_t first_row,
                                                   StagingBuffer<C> staging,
                                                   const float (&out)[C::head_dim / 2],
                                                   const RowStatistics& end) {
  if (!planned.result.is_all) return false;
  BoxAt at = planned.rows;  // loaded early, used at the end
  const CUtensorMap* const out_map = planned.result.out_map;
  uint32_t not_finite[2] = {};  // NaN in either half when any value is infinite or NaN
#pragma unroll
  for (int b = 0; b < C::head_dim / 16; ++b) {
    uint32_t four[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float factor = end.row[i % 2].reciprocal;
      four[i] = device::pack_two<T>(factor * out[8 * b + 2 * i], factor * out[8 * b + 2 * i + 1]);
      not_finite[i % 2] = device::add_zero_times<T>(four[i], not_finite[i % 2]);
    }
    staging.put(b, four);
  }
  const bool is_bad = !(end.row[0].lse2 < INFINITY) || !(end.row[1].lse2 < INFINITY) ||
                      ((not_finite[0] | not_finite[1]) & 0x7fff7fff) != 0;
  if (__any_sync(~0u, is_bad)) return false;
  publish_stores();
  __syncwarp();
  if (device::thread_index() % 32 == 0) {
    at.row += first_row;
#pragma unroll
    for (int panel = 0; panel < StagingBuffer<C>::Queries::count;
         ++panel, at.column += kBoxColumns) {
      store_box(out_map, staging.at + uint32_t(panel * StagingBuffer<C>::Queries::bytes), at);
    }
    commit_stores();
  }
  store_lse(p, planned.result, first_row, end);
  return true;
}

// The general path, straight from registers.
//
// Element (4 j + 2 h + e) of `out` is row first_row + lane / 4 + 8 h of the tile, column
// 8 j + 2 (lane % 4) + e.
template <class T, class C>
__device__ __forceinline__ void store_rows(const ForwardParams& p, const PlannedResult& result,
                                           int32_t first_row, float (&out)[C::head_dim / 2],
                                           const RowStatistics& end) {
  const int lane = int(device::thread_index() % 32), c = lane % 4;
  // Recomputed at each use: a long-lived predicate would take a register in the mainloop.
  const auto is_slot = [&] {
    int32_t slot = result.slot;
    asm volatile("" : "+r"(slot));
    return slot >= 0;
  };
  uint32_t bad_rows = 0;

#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int32_t row = first_row + lane / 4 + 8 * h;
    const bool is_row = row < result.num_rows;
    const int64_t query = result.query + int64_t{p.view.stride} * row;
    device::RowTarget<T> target = {end.row[h].reciprocal, 0, nullptr, nullptr, nullptr};
    float lse2 = end.row[h].lse2;
    int64_t slot_row = 0;
    if (is_row && is_slot()) {
      slot_row = device::slot_row(p, result.head_index, result.slot, row);
      target = device::slot_target<T>(p, slot_row);
    } else if (is_row && !result.is_all) {
      const device::RowFinish finish =
          device::finish_row(p, result.head_index, query, end.row[h].max2, end.row[h].sum);
      target = device::row_target<T>(p, result.head_index, query, finish);
      lse2 = finish.lse2;
    }
    bool is_bad = !(lse2 < INFINITY);
    const auto for_each_two = [&](auto visit) {
#pragma unroll
      for (int j = 0; j < C::head_dim / 8; ++j) {
        visit(8 * j + 2 * c, out[4 * j + 2 * h], out[4 * j + 2 * h + 1]);
      }
    };
    for_each_two([&](int, float& x, float& y) {
      x *= target.factor;
      y *= target.factor;
    });
    if (target.before != nullptr) {
      for_each_two([&](int col, float& x, float& y) {
        if (col >= p.sizes.v_head_dim) return;
        const float2 before = *reinterpret_cast<const float2*>(target.before + col);
        x += target.state_factor * before.x;
        y += target.state_factor * before.y;
      });
    }
    float not_finite[4] = {};  // NaN when any value is infinite or NaN; four chains
    for_each_two([&](int col, float x, float y) {
      not_finite[col / 8 % 2] = fmaf(x, 0.f, not_finite[col / 8 % 2]);
      not_finite[col / 8 % 2 + 2] = fmaf(y, 0.f, not_finite[col / 8 % 2 + 2]);
    });
    const float any_not = (not_finite[0] + not_finite[1]) + (not_finite[2] + not_finite[3]);
    is_bad = is_row && (is_bad || any_not != 0);
    const uint32_t votes = __ballot_sync(~0u, is_bad);
    is_bad = (votes >> (lane & ~3) & 0xf) != 0;  // in any of the four lanes that hold the row
    if (votes != 0) {
      for (int i = 0; i < 8; ++i) bad_rows |= uint32_t((votes >> 4 * i & 0xf) != 0) << (8 * h + i);
    }

    const bool is_stored = is_row && !is_bad;
    if (is_stored && c == 0) {
      if (is_slot()) {
        p.slots.max[slot_row] = end.row[h].max2;
        p.slots.sum[slot_row] = end.row[h].sum;
      } else if (!p.is_last) {
        device::store_lse(p, result.head_index, query, lse2);
      } else if (p.lse.data != nullptr) {
        static_cast<float*>(p.lse.data)[result.lse_at + row * (p.view.stride * p.lse.row_stride)] =
            lse2 * device::kLn2;
      }
    }
    if (is_slot() || !p.is_last) {                   // fp32, in the workspace
      for_each_two([&](int col, float x, float y) {  // v_head_dim % 8 == 0: aligned
        if (is_stored && col < p.sizes.v_head_dim) {
          *reinterpret_cast<float2*>(target.wide + col) = {x, y};
        }
      });
      continue;
    }
    T* const to =
        static_cast<T*>(p.out.data) + result.out_at + row * (p.view.stride * p.out.row_stride);
#pragma unroll
    for (int j = 0; j < C::head_dim / 8; j += 4) {  // four lanes write 64 bytes of a row
      uint32_t two[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 4 * (j + i) + 2 * h;
        two[i] = device::pack_two<T>(out[at], out[at + 1]);
      }
      const uint4 eight = exchange_blocks(two, c);
      const int col = 8 * (j + c);
      if (is_stored && col < p.sizes.v_head_dim) {
        device::store_vector(to + col, eight);
      }
    }
  }
  if (bad_rows != 0) {
    __syncwarp();
    recompute<T>(p, *result.item, first_row, bad_rows);
  }
}

}  // namespace keyhole::sm90
