// src/kernels/sm90/wide_backward_dq.cuh
// dq of wide heads: a warpgroup of its own (wide_backward_shared.cuh) multiplies ds by the keys,
// some columns at a time, and adds them to memory from its registers. Nobody waits for it as long
// as it takes less than a step. Otherwise ds waits at ds_empty, since `pairs` has one stage.
#pragma once

#include "kernels/device/query_blocks.cuh"
#include "kernels/sm90/backward_dq.cuh"
#include "kernels/sm90/wide_backward_shared.cuh"

namespace keyhole::sm90 {

// kTurns: adds a step when may_add says that it is its turn (wide_backward_turns.cuh).
template <class T, class C, bool kTurns>
class WideDq {
 public:
  __device__ WideDq(const BackwardParams& params, WideShared<C>& shared)
      : p_(params), shared_(shared) {}

  __device__ __forceinline__ void follow() {
    arrive_at<kPair>(kDsEmpty);
    uint32_t items = 0, step = 0;
    for (uint32_t item = 0;; ++item) {
      const uint32_t slot = item % kSlots;
      shared_.await(shared_.is_planned[slot], item / kSlots % 2);
      const int steps = warp_uniform(shared_.planned[slot].num_steps);
      if (steps < 0) break;
      if (steps > 0) shared_.await(shared_.halves[kK].keys_full, items++ % 2);
      for (int left = steps; left > 0; --left, ++step) {
        meet_at<kPair>(kDsFull);
        first_ = int64_t{shared_.tile[step % kTilesInUse]} * C::tile_q + warp() * 16;
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
          Dq dq;
          begin_products();
          multiply(dq, piece);
          await_products<0>();
          is_ready(dq);
          if (piece == kPieces - 1) {
            arrive_at<kPair>(kDsEmpty);
            if (left == 1) arrive_as_warp(shared_.halves[kK].keys_empty);
          }
          if (kTurns && piece == 0) {
            shared_.await(shared_.may_add[step % kTurnsInUse], step / kTurnsInUse % 2);
          }
          put(dq, piece, shared_.planned[slot].dq);
        }
        if constexpr (kTurns) {
          __syncwarp();
          arrive_as_warp(shared_.is_added[step % kTurnsInUse]);
        }
      }
      __syncwarp();
      arrive_as_warp(shared_.planned_empty[slot]);
    }
  }

 private:
  using Keys = typename WideShared<C>::Keys;
  using Pairs = typename WideShared<C>::Pairs;
  static constexpr int kDs = int(Half::ds), kK = int(Half::weights);  // who has ds, k
  static constexpr int kColumns = C::dq_columns, kPieces = C::head_dim / kColumns;
  static_assert(C::tile_q == 64 && kColumns * kPieces == C::head_dim);
  using Dq = float[kColumns / 2];

  static __device__ __forceinline__ int warp() {
    return int(device::thread_index() % kWarpgroup / 32);
  }
  static __device__ __forceinline__ int lane() { return int(device::thread_index() % 32); }

  // dq = ds' . keys, columns of a piece.
  __device__ __forceinline__ void multiply(Dq& dq, int piece) const {
    const uint64_t left = operand_anew(smem_address(shared_.tiles[kDs].pairs), Pairs::bytes);
    const int first = piece * kColumns;
    const uint64_t right = operand_anew(
        smem_address(shared_.tiles[kK].keys) + uint32_t(first / 64 * Keys::bytes + first % 64 * 2),
        Keys::bytes);
    Product<T>::template begin_of_shared<true, true>(dq, left, right);
#pragma unroll
    for (int b = 1; b < C::tile_k / 16; ++b) {
      Product<T>::template of_shared<false, true, true>(dq, further(left, b * 16 * 128),
                                                        further(right, b * 16 * 128));
    }
    commit_products();
  }
  __device__ __forceinline__ void put(const Dq& dq, int piece, const DqRows& place) const {
    const int column = piece * kColumns, columns = p_.sizes.head_dim;
    if (place.form == DqForm::blocks) {
      float* const to = p_.sums.dq + place.first + first_ * columns + column * 16 + 4 * lane();
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
        if (column + 8 * j < columns) {
          device::add_to_block(to + j * device::kBlockFloats,
                               {dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]});
        }
      }
    } else if (place.form == DqForm::rows) {
      add_rows(dq, column, place);
    } else {
      T* const to = static_cast<T*>(p_.dq.data) + place.first + first_ * place.row_step + column;
      if (write_rows(dq, p_.sizes.scale, to, place.row_step,
                     device::rows_left(place.num_q, first_, 16), columns - column, lane())) {
        *p_.found_nonfinite = 1;
      }
      __syncwarp();  // lanes differ; products and barriers follow, which want the warp together
    }
  }
  // Sums in row order. Two lanes exchange one of two blocks, so that each adds four columns.
  __device__ __forceinline__ void add_rows(const Dq& dq, int column, const DqRows& place) const {
    const bool is_odd = lane() % 2 != 0;
    const int first_column = column + lane() % 4 / 2 * 4 + (is_odd ? 8 : 0);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t row = first_ + lane() / 4 + 8 * h;
      float* const to = p_.sums.dq + place.first + row * place.row_step + first_column;
#pragma unroll
      for (int j = 0; j < kColumns / 8; j += 2) {
        const float scale = p_.sizes.scale;
        const int even = 4 * j + 2 * h, odd = even + 4;
        const float2 a = {scale * dq[even], scale * dq[even + 1]};
        const float2 b = {scale * dq[odd], scale * dq[odd + 1]};
        const float2 given = is_odd ? a : b, kept = is_odd ? b : a;
        const float2 got = {__shfl_xor_sync(~0u, given.x, 1), __shfl_xor_sync(~0u, given.y, 1)};
        const bool is_wanted = row < place.num_q && column + 8 * (j + is_odd) < p_.sizes.head_dim;
        device::add_to_global(to + 8 * j, is_odd ? got : kept, is_odd ? kept : got, is_wanted);
      }
    }
  }

  const BackwardParams& p_;
  WideShared<C>& shared_;
  int64_t first_ = 0;  // row of the warp in a step
};

}  // namespace keyhole::sm90
