// src/kernels/sm90/backward_keys.cuh
// dk and dv, and dq step by step. Keys stay with the CTA, steps of queries pass by. Scores
// are made transposed, rows are keys: their blocks are then the left operand of
//   dv += p' dout     dk += ds' q        p  = 2^(factor * k q' - lse2)   ' is transposed
//   dq  = ds k, to memory                ds = p (v dout' - delta)
// Each warpgroup has its keys' ds in registers, for dk; for dq both meet, with all of ds in shared
// memory. The order keeps products under way while something is computed or waited for:
//
//   ds | dv, dk; ds is shared | meet | dq | the next step's scores; dq leaves | v dout'; weights
#pragma once

#include "kernels/sm90/backward_copies.cuh"
#include "kernels/sm90/backward_dq.cuh"

namespace keyhole::sm90 {

template <class T, class C>
struct KeysFollower {
  using Keys = Panels<C::tile_k, C::head_dim>;
  using Queries = Panels<C::tile_q, C::head_dim>;
  using Shared = Panels<C::tile_k, C::tile_q>;                      // ds
  static constexpr int kD = C::head_dim, kBlocks = C::tile_q / 16;  // of 16 queries
  static constexpr int kWords = C::tile_q / 64;                     // of bits, of a lane
  using Scores = float[C::tile_q / 2];
  using Packed = uint32_t[kBlocks][4];

  // What a step knows of its pairs; loaded early.
  struct Mask {
    Step step;
    uint32_t bits[kWords];
    __device__ __forceinline__ bool is_partial() const { return step.bitmap != kFull; }
  };

  const BackwardParams& p;
  KeysShared<C>& shared;
  const int warpgroup;  // the same for a whole warp, which the compiler must see
  const int thread = int(threadIdx.x % kWarpgroup);
  float dk[kD / 2], dv[kD / 2];
  Packed weight16, ds16;

  __device__ __forceinline__ int lane() const { return thread % 32; }
  __device__ __forceinline__ int first_key() const { return 64 * warpgroup; }  // of the warpgroup

  // scores = keys . queries', both [row][head_dim].
  __device__ __forceinline__ void multiply_rows(Scores& scores, const void* keys,
                                                const void* queries) const {
    const uint64_t left = operand(smem_address(keys) + uint32_t(first_key() * 128), Keys::bytes);
    const uint64_t right = operand(smem_address(queries), Queries::bytes);
    Product<T>::template of_shared<true, false, false>(scores, left, right);
#pragma unroll
    for (int d = 1; d < kD / 16; ++d) {
      Product<T>::template of_shared<false, false, false>(
          scores, further(left, d / 4 * Keys::bytes + d % 4 * 32),
          further(right, d / 4 * Queries::bytes + d % 4 * 32));
    }
    commit_products();
  }
  // sum += weights . queries, [row][head_dim].
  __device__ __forceinline__ void add_product(float (&sum)[kD / 2], const Packed& weights,
                                              const void* queries) const {
    const uint64_t right = operand(smem_address(queries), Queries::bytes);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      Product<T>::of_registers(sum, weights[b], further(right, b * 16 * 128));
    }
  }
  // This warpgroup's share of dq = ds . keys.
  __device__ __forceinline__ void multiply_ds(float (&dq)[32], int stage) const {
    const uint64_t left = operand(
        smem_address(shared.ds[stage]) + uint32_t(DqShare<C>::row(warpgroup) / 64 * Shared::bytes),
        Shared::bytes);
    const uint64_t right =
        operand(smem_address(shared.k) + uint32_t(DqShare<C>::column(warpgroup) / 64 * Keys::bytes),
                Keys::bytes);
    Product<T>::template of_shared<true, true, true>(dq, left, right);
#pragma unroll
    for (int b = 1; b < C::tile_k / 16; ++b) {
      Product<T>::template of_shared<false, true, true>(dq, further(left, b * 16 * 128),
                                                        further(right, b * 16 * 128));
    }
    commit_products();
  }

  // The bits of this thread's scores, where some pairs do not attend.
  __device__ __forceinline__ void load_bits(uint32_t (&bits)[kWords], int32_t bitmap) const {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(p.view.t_bitmaps) +
                            int64_t{bitmap} * (C::tile_k / 16 * 32 * kWords) +
                            (warpgroup * kWarpgroup + thread) * kWords;
#pragma unroll
    for (int w = 0; w < kWords; ++w) bits[w] = bitmap == kFull ? 0 : words[w];
  }
  static __device__ __forceinline__ bool attends(const uint32_t (&bits)[kWords], int i) {
    return (bits[i / 32] & 1u << i % 32) != 0;
  }

  // Pairs that do not attend get 0, selected.
  __device__ __forceinline__ void make_weights(const Turn<C::stages>& turn, const Mask& mask,
                                               Scores& scores) const {
    await_products<1>();
    is_ready(scores);
    const float factor = p.sizes.scale * device::kLog2E;
    const uint32_t lse2_at = smem_address(&shared.lse2[turn.stage][lane() % 4 * 2]);
#pragma unroll
    for (int j = 0; j < C::tile_q / 8; ++j) {
      const float2 lse2 = device::load_shared_floats(lse2_at + uint32_t(32 * j));
#pragma unroll
      for (int i = 4 * j; i < 4 * j + 4; i += 2) {
        scores[i] = device::exp2_fast(scores[i] * factor - lse2.x);
        scores[i + 1] = device::exp2_fast(scores[i + 1] * factor - lse2.y);
      }
    }
    if (!mask.is_partial()) return;
#pragma unroll
    for (int i = 0; i < C::tile_q / 2; ++i) scores[i] = attends(mask.bits, i) ? scores[i] : 0;
  }
  // grad becomes ds; likewise.
  __device__ __forceinline__ void make_ds(const Scores& weights, Scores& grad, int stage,
                                          const Mask& mask) const {
    const uint32_t delta_at = smem_address(&shared.delta[stage][lane() % 4 * 2]);
#pragma unroll
    for (int j = 0; j < C::tile_q / 8; ++j) {
      const float2 delta = device::load_shared_floats(delta_at + uint32_t(32 * j));
#pragma unroll
      for (int i = 4 * j; i < 4 * j + 4; i += 2) {
        grad[i] = weights[i] * (grad[i] - delta.x);
        grad[i + 1] = weights[i + 1] * (grad[i + 1] - delta.y);
      }
    }
    if (!mask.is_partial()) return;
#pragma unroll
    for (int i = 0; i < C::tile_q / 2; ++i) grad[i] = attends(mask.bits, i) ? grad[i] : 0;
  }
  static __device__ __forceinline__ void pack(const Scores& from, Packed& to) {
#pragma unroll
    for (int i = 0; i < C::tile_q / 4; ++i) {
      to[i / 4][i % 4] = device::pack_two<T>(from[2 * i], from[2 * i + 1]);
    }
  }

  // Where this lane points stmatrix at: rows of this warp, in a tile [key][..]; block b lies at
  // at ^ b % 4 * 32, b / 4 panels further.
  __device__ __forceinline__ uint32_t own_rows(const void* tile) const {
    const uint32_t row = uint32_t(first_key() + thread / 32 * 16 + lane() % 16);
    return smem_address(tile) + row * 128 + (uint32_t(lane()) / 16 ^ row % 8) * 16;
  }
  __device__ __forceinline__ void share_ds(int stage) const {
    const uint32_t at = own_rows(shared.ds[stage]);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      store_matrices((at ^ uint32_t(b % 4 * 32)) + uint32_t(b / 4 * Shared::bytes), ds16[b]);
    }
    publish_stores();
  }

  __device__ __forceinline__ void begin_step(const Turn<C::stages>& turn, Mask& mask,
                                             Scores& scores) const {
    await(shared.is_full[turn.stage], turn.parity);
    mask.step = shared.step[turn.stage];
    load_bits(mask.bits, mask.step.bitmap);
    begin_products();
    multiply_rows(scores, shared.k, shared.q[turn.stage]);
  }

  // One step of pairs, whose weights are there and whose grad is under way; those of the next step
  // are at its end. buffer: of ds.
  template <bool kIsLast>
  __device__ __forceinline__ void follow_step(Turn<C::stages>& turn, Mask& mask, Scores& scores,
                                              Scores& grad, int buffer) {
    const int stage = turn.stage;
    await_products<0>();
    is_ready(grad);
    pack(scores, weight16);
    make_ds(scores, grad, stage, mask);
    pack(grad, ds16);
    begin_products();
    add_product(dv, weight16, shared.dout[stage]);
    add_product(dk, ds16, shared.q[stage]);
    commit_products();
    share_ds(buffer);
    meet<1, kMultipliers>();  // ds of both is there
    float dq[32];
    begin_products();
    multiply_ds(dq, buffer);
    const int32_t tile = mask.step.tile;
    if constexpr (kIsLast) {
      await_products<0>();
      is_ready(dk);
      is_ready(dv);
      is_ready(dq);
    } else {
      await_products<1>();  // dk and dv
      if (lane() == 0) arrive(shared.is_empty[stage]);
      turn.next();
      begin_step(turn, mask, scores);
      await_products<1>();
      is_ready(dq);
    }
    put_dq<T, C>(p, shared, dq, tile, warpgroup, thread);
    if constexpr (!kIsLast) {
      begin_products();
      multiply_rows(grad, shared.v, shared.dout[turn.stage]);
      make_weights(turn, mask, scores);
    }
  }

  __device__ __forceinline__ void follow_list(int steps) {
    Turn<C::stages> turn;
    Mask mask;
    Scores scores, grad;
    begin_step(turn, mask, scores);
    multiply_rows(grad, shared.v, shared.dout[turn.stage]);
    make_weights(turn, mask, scores);
    int buffer = 0;
    for (int i = 1; i < steps; ++i, buffer ^= 1) {
      follow_step<false>(turn, mask, scores, grad, buffer);
    }
    follow_step<true>(turn, mask, scores, grad, buffer);
    await_additions();
  }
  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int i = 0; i < kD / 2; ++i) dk[i] = dv[i] = 0;
    is_ready(dk);
    is_ready(dv);
  }

  // All of dk or dv that this CTA has: to `room` in shared memory, from where it will be written,
  // or stored as it is in a slot of its own, or added to sums, where several CTAs may meet.
  __device__ __forceinline__ void finish(const float (&sum)[kD / 2], float scale, const void* room,
                                         const device::KeySums& sums) const {
    if (sums.rows.first == nullptr) {
      const uint32_t at = own_rows(room);
#pragma unroll
      for (int b = 0; b < kD / 16; ++b) {
        uint32_t packed[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          packed[i] =
              device::pack_two<T>(scale * sum[8 * b + 2 * i], scale * sum[8 * b + 2 * i + 1]);
        }
        store_matrices((at ^ uint32_t(b % 4 * 32)) + uint32_t(b / 4 * Keys::bytes), packed);
      }
      return;
    }
    const int row = first_key() + thread / 32 * 16 + lane() / 4;
#pragma unroll
    for (int i = 0; i < kD / 2; i += 2) {
      sums.take(row + i / 2 % 2 * 8, i / 4 * 8, lane() % 4 * 2, scale * sum[i], scale * sum[i + 1]);
    }
  }
};

// The part of the warpgroups that multiply.
template <class T, class C>
__device__ __forceinline__ void follow(const BackwardParams& p, KeysShared<C>& shared,
                                       int warpgroup, int steps) {
  const int64_t stride = p.view.stride;
  const int head_dim = p.sizes.head_dim, v_head_dim = p.sizes.v_head_dim;
  const int thread = int(threadIdx.x);
  // Asked for twice: while a list is followed the registers are full.
  const auto my_work = [&] { return device::my_work<true>(p.sizes, p.view, p.heads_per_section); };
  const auto my_keys = [&](const device::Work& work) {
    return device::key_rows<C::tile_k, C::tile_k>(p, work, 0);
  };
  {
    const device::KeyRows keys = my_keys(my_work());
    copy_tile<C::tile_k, C::head_dim, kMultipliers, T>(
        smem_address(shared.k), keys.of<const T>(p.k, stride, head_dim), thread);
    copy_tile<C::tile_k, C::head_dim, kMultipliers, T>(
        smem_address(shared.v), keys.of<const T>(p.v, stride, v_head_dim), thread);
    device::commit_copies();
    device::await_copies<0>();
    publish_stores();
    meet<1, kMultipliers>();
  }
  KeysFollower<T, C> follower = {p, shared, warpgroup};
  follower.begin();
  if (steps > 0) follower.follow_list(steps);

  const device::Work work = my_work();
  const device::KeyRows keys = my_keys(work);
  meet<1, kMultipliers>();  // k and v have been used: they become the way out
  follower.finish(
      follower.dk, p.sizes.scale, shared.k,
      device::key_sums<C::tile_k, C::tile_k>(p, work, keys, 0, p.slots.dk, p.sums.dk, head_dim));
  follower.finish(
      follower.dv, 1, shared.v,
      device::key_sums<C::tile_k, C::tile_k>(p, work, keys, 0, p.slots.dv, p.sums.dv, v_head_dim));
  if (work.slot >= 0 || p.sums.dk != nullptr) return;
  meet<1, kMultipliers>();
  const bool bad_k = store_tile<C::tile_k, C::head_dim, kMultipliers, T>(
      smem_address(shared.k), keys.of<T>(p.dk, stride, head_dim), thread);
  const bool bad_v = store_tile<C::tile_k, C::head_dim, kMultipliers, T>(
      smem_address(shared.v), keys.of<T>(p.dv, stride, v_head_dim), thread);
  if (bad_k || bad_v) *p.found_nonfinite = 1;
}

// One CTA per item and query head; query heads of one kv head meet in sums.dk and sums.dv.
template <class T, class C>
__global__ void __launch_bounds__(kThreads, 1)
    backward_keys(const __grid_constant__ BackwardParams p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<KeysShared<C>*>(memory);
  const device::Work work = device::my_work<true>(p.sizes, p.view, p.heads_per_section);
  if (work.is_nothing) return;
  if (work.num_tiles == 0 && p.sums.dk != nullptr) return;  // adds nothing
  if (int64_t{work.row_tile} * C::tile_k >= work.residue.num_k) return;
  if (threadIdx.x == 0) {
    shared.init_barriers();
    shared.dq = dq_rows(p, work);
  }
  __syncthreads();

  const int warp = __shfl_sync(~0u, int(threadIdx.x / 32), 0);  // the compiler sees: of all lanes
  if (warp >= kMultipliers / 32) {
    shrink_registers<kCopierRegisters>();
    const int thread = int(threadIdx.x) - kMultipliers;
    if (warp < kMultipliers / 32 + kCopiers / 32) {
      copy_steps<T, C>(p, shared, work, p.q, p.sizes.head_dim, p.lse2, smem_address(shared.q),
                       smem_address(shared.lse2), thread);
    } else {
      copy_steps<T, C>(p, shared, work, p.dout, p.sizes.v_head_dim, p.delta,
                       smem_address(shared.dout), smem_address(shared.delta), thread - kCopiers);
    }
  } else {
    grow_registers<kMultiplierRegisters>();
    follow<T, C>(p, shared, warp / 4, __shfl_sync(~0u, work.num_tiles, 0));
  }
}

}  // namespace keyhole::sm90
