// src/kernels/sm80/forward_result.cuh
// The epilogue: from a warp's accumulators to out and lse, to the state between parts, or to a
// slot.
#pragma once

#include "kernels/device/exact_forward.cuh"
#include "kernels/device/work.cuh"
#include "kernels/sm80/forward_loads.cuh"

namespace keyhole::sm80 {

using device::ForwardParams;
using device::Work;

// A warp's accumulators. Element i of block b, columns 8 * n ..., is in row 16 * b + lane / 4 + 8 *
// (i / 2), column 8 * n + 2 * (lane % 4) + i % 2. A sum covers only the lane's columns.
template <class C>
struct Accumulators {
  float out[Shape<C>::blocks][C::head_dim / 8][4];
  float sum[Shape<C>::blocks][2];
  float minus_base[Shape<C>::blocks][2];  // FLT_MAX: the row has not attended to anything yet
};

// Recomputes rows that are not finite; bit i: row first_row + i.
template <class T>
__device__ __noinline__ void recompute(const ForwardParams& p, int64_t item, int32_t first_row,
                                       uint32_t rows) {
  const Work work = device::my_work(p.sizes, p.view, p.heads_per_section, item);
  for (; rows != 0; rows &= rows - 1) {
    device::recompute_row<T, BitmapLayout::mma>(p, work, first_row + __ffs(int(rows)) - 1);
  }
}

// first_row: the warp's first row in its tile. staging: the warp's own rows of shared memory,
// C::rows_per_warp of Shape<C>::row_bytes, which no other warp reads any more.
template <class T, class C>
__device__ __forceinline__ void store_rows(const ForwardParams& p, const Work& work, int64_t item,
                                           int32_t first_row, uint32_t staging,
                                           Accumulators<C>& acc) {
  const int lane = int(thread_index() % 32);
  const int64_t first_index = int64_t{work.row_tile} * C::tile_q + first_row;
  const bool is_slot = work.slot >= 0;
  const bool is_wide = is_slot || !p.is_last;  // fp32, in the workspace
  // The rows are complete (no other chunk, part or sink), as nearly always: no further division.
  const bool is_all = !is_slot && p.is_first && p.is_last && p.sink == nullptr;
  float* const lse = p.lse.data == nullptr
                         ? nullptr
                         : p.lse.row<float>(work.batch, work.head, work.residue.first_q);
  uint32_t bad_rows = 0;

#pragma unroll
  for (int b = 0; b < Shape<C>::blocks; ++b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = 16 * b + 8 * half + lane / 4;
      const bool is_row = first_index + row < work.residue.num_q;
      const int64_t query = work.residue.first_q + p.view.stride * (first_index + row);
      const device::RowEnd end = device::end_row(acc.sum[b][half], acc.minus_base[b][half]);
      device::RowTarget<T> target = {end.reciprocal, 0, nullptr, nullptr, nullptr};
      float lse2 = end.lse2;
      int64_t slot_row = 0;
      if (is_row && is_slot) {
        slot_row = device::slot_row(p, work.head_index, work.slot, first_row + row);
        target = device::slot_target<T>(p, slot_row);
      } else if (is_row && !is_all) {
        const device::RowFinish finish =
            device::finish_row(p, work.head_index, query, end.max2, end.sum);
        target = device::row_target<T>(p, work.head_index, query, finish);
        lse2 = finish.lse2;
      }
      bool is_bad = !(lse2 < INFINITY);
      // Columns 8 * n + 2 * (lane % 4) of the row, and the next one.
      const auto for_each_two = [&](auto visit) {
#pragma unroll
        for (int n = 0; n < C::head_dim / 8; ++n) {
          visit(n, 8 * n + 2 * (lane % 4), acc.out[b][n][2 * half], acc.out[b][n][2 * half + 1]);
        }
      };
      for_each_two([&](int, int, float& x, float& y) {
        x *= target.factor;
        y *= target.factor;
      });
      if (target.before != nullptr) {
        for_each_two([&](int, int col, float& x, float& y) {
          if (col >= p.sizes.v_head_dim) return;
          const float2 before = *reinterpret_cast<const float2*>(target.before + col);
          x += target.state_factor * before.x;
          y += target.state_factor * before.y;
        });
      }
      float not_finite = 0;  // NaN when any value is infinite or NaN
      for_each_two(
          [&](int, int, float x, float y) { not_finite = fmaf(x, 0.f, fmaf(y, 0.f, not_finite)); });
      is_bad = is_row && (is_bad || not_finite != 0);
      const uint32_t votes = __ballot_sync(~0u, is_bad);
      is_bad = (votes >> (lane & ~3) & 0xf) != 0;  // in any of the four lanes that hold the row
      if (votes != 0) {
        for (int i = 0; i < 8; ++i) {
          if (votes >> (4 * i) & 0xf) bad_rows |= 1u << (16 * b + 8 * half + i);
        }
      }

      const bool is_stored = is_row && !is_bad;
      if (is_stored && lane % 4 == 0) {
        if (is_slot) {
          p.slots.max[slot_row] = end.max2;
          p.slots.sum[slot_row] = end.sum;
        } else if (is_all) {
          if (lse != nullptr) {
            lse[(first_index + row) * (p.view.stride * p.lse.row_stride)] = lse2 * device::kLn2;
          }
        } else {
          device::store_lse(p, work.head_index, query, lse2);
        }
      }
      if (!is_wide) {
        const uint32_t to = staging + lane % 4 * 4;
        for_each_two([&](int n, int, float x, float y) {
          store_shared(to + Swizzle<C>::offset(row, n), Element<T>::pack(x, y));
        });
      } else if (is_stored) {
        for_each_two([&](int, int col, float x, float y) {  // v_head_dim % 8 == 0: aligned
          if (col < p.sizes.v_head_dim) *reinterpret_cast<float2*>(target.wide + col) = {x, y};
        });
      }
    }
  }

  if (!is_wide) {  // a lane stores 16 bytes of a row
    __syncwarp();
    constexpr int chunks = C::head_dim / 8;
    T* const head = p.out.row<T>(work.batch, work.head, 0);
#pragma unroll 4
    for (int i = lane; i < C::rows_per_warp * chunks; i += 32) {
      const int row = i / chunks, chunk = i % chunks;
      if (first_index + row >= work.residue.num_q || chunk * 8 >= p.sizes.v_head_dim) continue;
      if (bad_rows >> row & 1) continue;
      const int64_t query = work.residue.first_q + p.view.stride * (first_index + row);
      *reinterpret_cast<uint4*>(head + query * p.out.row_stride + chunk * 8) =
          load_shared_vector(staging + Swizzle<C>::offset(row, chunk));
    }
  }
  if (bad_rows != 0) {
    __syncwarp();
    recompute<T>(p, item, first_row, bad_rows);
  }
}

}  // namespace keyhole::sm80
