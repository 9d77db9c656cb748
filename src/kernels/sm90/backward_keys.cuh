// src/kernels/sm90/backward_keys.cuh
// dk, dv and dq. A CTA keeps its key tile and loops over steps of queries. Scores are transposed
// (rows are keys), so that their blocks are the left operand of the next products:
//   dv += p' dout     dk += ds' q        p  = 2^(factor * k q' - lse2)   ' is transposed
//   dq  = ds k, to memory                ds = p (v dout' - delta)
// backward_shared.cuh has the pipeline. For dk, each warpgroup has ds of its own keys in registers.
// For dq, both warpgroups put ds in shared memory and meet at a barrier. The order of a step keeps
// the tensor cores busy during arithmetic and waits:
//
//   ds | dv, dk; ds to shared memory | barrier | dq | next scores; dq is stored | v dout'; weights
//
// What becomes of a product is the Rule's to say, here for softmax (softmax_keys.cuh); that of
// entmax is in entmax_keys.cuh.
#pragma once

#include "kernels/sm90/backward_producer.cuh"
#include "kernels/sm90/softmax_keys.cuh"

namespace keyhole::sm90 {

template <class T, class C, class Rule>
struct KeysConsumer {
  using Keys = typename KeysShared<C>::Keys;
  using Queries = typename KeysShared<C>::Queries;
  using Shared = Panels<C::tile_k, C::tile_q>;                         // ds
  static constexpr int kD = C::head_dim, kBlocks = C::tile_q / 16;     // of 16 queries
  static constexpr int kWords = C::tile_q / 64;                        // of mask bits per lane
  static constexpr bool kPauses = Rule::kSparesRegisters && kD == 64;  // between polls
  using Scores = float[C::tile_q / 2];
  using Packed = uint32_t[kBlocks][4];

  // The mask of a step, loaded early.
  struct Mask {
    Step step;
    uint32_t bits[kWords];
    __device__ __forceinline__ bool is_partial() const { return step.bitmap != kFull; }
  };

  const BackwardParams& p;
  const typename Rule::Numbers& numbers;
  KeysShared<C>& shared;
  const int warpgroup;  // warp-uniform, and the compiler must be able to prove it
  const int thread = int(threadIdx.x % kWarpgroup);
  PipelineState<kSlots> slot;  // of keys and planned items
  PipelineState<1> values;
  PipelineState<C::stages> state;  // of steps
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
  // This warpgroup's part of dq = ds . keys.
  __device__ __forceinline__ void multiply_ds(float (&dq)[32], int stage) const {
    const uint64_t left = operand(
        smem_address(shared.ds[stage]) + uint32_t(DqShare<C>::row(warpgroup) / 64 * Shared::bytes),
        Shared::bytes);
    const uint64_t right = operand(smem_address(shared.k[slot.stage]) +
                                       uint32_t(DqShare<C>::column(warpgroup) / 64 * Keys::bytes),
                                   Keys::bytes);
    Product<T>::template of_shared<true, true, true>(dq, left, right);
#pragma unroll
    for (int b = 1; b < C::tile_k / 16; ++b) {
      Product<T>::template of_shared<false, true, true>(dq, further(left, b * 16 * 128),
                                                        further(right, b * 16 * 128));
    }
    commit_products();
  }

  // The mask bits of this thread's scores. Those of a full tile are used only where weights are
  // packed and masked without a branch.
  static constexpr uint32_t kNoMask = Rule::kMeetsRowLate ? ~0u : 0;
  __device__ __forceinline__ void load_bits(uint32_t (&bits)[kWords], int32_t bitmap) const {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(p.view.t_bitmaps) +
                            int64_t{bitmap} * (C::tile_k / 16 * 32 * kWords) +
                            (warpgroup * kWarpgroup + thread) * kWords;
#pragma unroll
    for (int w = 0; w < kWords; ++w) bits[w] = bitmap == kFull ? kNoMask : words[w];
  }
  static __device__ __forceinline__ bool attends(const uint32_t (&bits)[kWords], int i) {
    return (bits[i / 32] & 1u << i % 32) != 0;
  }

  // Pairs that do not attend get 0.
  static __device__ __forceinline__ void select(const Mask& mask, Scores& scores) {
    if (!mask.is_partial()) return;
#pragma unroll
    for (int i = 0; i < C::tile_q / 2; ++i) scores[i] = attends(mask.bits, i) ? scores[i] : 0;
  }
  __device__ __forceinline__ uint32_t own_queries(const float (&numbers)[C::tile_q]) const {
    return smem_address(&numbers[lane() % 4 * 2]);
  }

  __device__ __forceinline__ void make_weights(const Mask& mask, Scores& scores) const {
    await_products<1>();
    is_ready(scores);
    const Rule rule{numbers};
    if constexpr (Rule::kMeetsRowLate) {
#pragma unroll
      for (float& score : scores) score = rule.keep(score);
    } else {
      const uint32_t of_row_at = own_queries(shared.lse2[state.stage]);
#pragma unroll
      for (int j = 0; j < C::tile_q / 8; ++j) {
        const float2 of_row = device::load_shared_floats(of_row_at + uint32_t(32 * j));
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; i += 2) {
          scores[i] = rule.keep(scores[i], of_row.x);
          scores[i + 1] = rule.keep(scores[i + 1], of_row.y);
        }
      }
      select(mask, scores);
    }
  }
  // Turns grad into ds, without the scale: that is applied to dk and dq at the end.
  __device__ __forceinline__ void make_ds(const Scores& weights, Scores& grad, int stage,
                                          const Mask& mask) const {
    const Rule rule{numbers};
    const uint32_t delta_at = own_queries(shared.delta[stage]);
#pragma unroll
    for (int j = 0; j < C::tile_q / 8; ++j) {
      const float2 delta = device::load_shared_floats(delta_at + uint32_t(32 * j));
#pragma unroll
      for (int i = 4 * j; i < 4 * j + 4; i += 2) {
        grad[i] = rule.slope(weights[i]) * (grad[i] - delta.x);
        grad[i + 1] = rule.slope(weights[i + 1]) * (grad[i + 1] - delta.y);
      }
    }
    select(mask, grad);
  }
  // Both from what was kept of the products. They are packed at once, which frees its registers.
  __device__ __forceinline__ void make_weights_and_ds(const Scores& kept, const Scores& grad,
                                                      int stage, const Mask& mask) {
    const Rule rule{numbers};
    const uint32_t of_row_at = own_queries(shared.lse2[stage]);
    const uint32_t delta_at = own_queries(shared.delta[stage]);
#pragma unroll
    for (int j = 0; j < C::tile_q / 8; ++j) {
      float2 of_row = {0, 0};
      if constexpr (Rule::kMeetsRowLate) {
        of_row = device::load_shared_floats(of_row_at + uint32_t(32 * j));
      }
      const float2 delta = device::load_shared_floats(delta_at + uint32_t(32 * j));
#pragma unroll
      for (int i = 4 * j; i < 4 * j + 4; i += 2) {
        float weight[2], ds[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const PairTerms terms = rule.terms(kept[i + e], e == 0 ? of_row.x : of_row.y);
          weight[e] = terms.weight;
          ds[e] = terms.slope * (grad[i + e] - (e == 0 ? delta.x : delta.y));
          if (Rule::kMeetsRowLate && !attends(mask.bits, i + e)) weight[e] = ds[e] = 0;
        }
        weight16[i / 8][i / 2 % 4] = device::pack_two<T>(weight[0], weight[1]);
        ds16[i / 8][i / 2 % 4] = device::pack_two<T>(ds[0], ds[1]);
      }
    }
  }
  static __device__ __forceinline__ void pack(const Scores& from, Packed& to) {
#pragma unroll
    for (int i = 0; i < C::tile_q / 4; ++i) {
      to[i / 4][i % 4] = device::pack_two<T>(from[2 * i], from[2 * i + 1]);
    }
  }

  // The address this lane gives to stmatrix: rows of this warp in a tile [key][..]. Block b is at
  // address ^ b % 4 * 32, b / 4 panels further.
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

  __device__ __forceinline__ void begin_step(Mask& mask, Scores& scores) const {
    shared.template await<kPauses>(shared.is_full[state.stage], state.parity);
    mask.step = shared.step[state.stage];
    load_bits(mask.bits, mask.step.bitmap);
    begin_products();
    multiply_rows(scores, shared.k[slot.stage], shared.q[state.stage]);
  }

  // One step. On entry its weights are ready and its grad is in flight; at the end, those of the
  // next step are.
  template <bool kIsLast>
  __device__ __forceinline__ void mainloop_step(Mask& mask, Scores& scores, Scores& grad) {
    const int stage = state.stage;
    await_products<0>();
    is_ready(grad);
    if constexpr (kIsLast) arrive_as_warp(shared.v_empty);
    if constexpr (Rule::kPacksAtOnce) {
      make_weights_and_ds(scores, grad, stage, mask);
    } else {
      pack(scores, weight16);
      make_ds(scores, grad, stage, mask);
      pack(grad, ds16);
    }
    begin_products();
    add_product(dv, weight16, shared.dout[stage]);
    add_product(dk, ds16, shared.q[stage]);
    commit_products();
    // The stage is free: both warpgroups finished the dq that last used it before the previous
    // barrier.
    share_ds(stage);
    meet<1, kConsumers>();  // ds of both warpgroups is in shared memory
    float dq[32];
    begin_products();
    multiply_ds(dq, stage);
    const int32_t tile = mask.step.tile;
    state.next();
    if constexpr (kIsLast) {
      await_products<0>();
      is_ready(dk);
      is_ready(dv);
      is_ready(dq);
      arrive_as_warp(shared.is_empty[stage]);
    } else {
      await_products<1>();  // dk and dv
      arrive_as_warp(shared.is_empty[stage]);
      begin_step(mask, scores);
      await_products<1>();
      is_ready(dq);
    }
    put_dq<T, C>(p, shared, slot.stage, dq, tile, warpgroup, thread);
    if constexpr (!kIsLast) {
      begin_products();
      multiply_rows(grad, shared.v, shared.dout[state.stage]);
      make_weights(mask, scores);
    }
  }

  __device__ __forceinline__ void mainloop(int steps) {
    Mask mask;
    Scores scores, grad;
    begin_step(mask, scores);
    // Without the pause in this wait, ptxas spills where a rule needs more registers.
    shared.template await<Rule::kPacksAtOnce>(shared.v_full, values.parity);
    values.next();
    begin_products();
    multiply_rows(grad, shared.v, shared.dout[state.stage]);
    make_weights(mask, scores);
    for (int i = 1; i < steps; ++i) mainloop_step<false>(mask, scores, grad);
    mainloop_step<true>(mask, scores, grad);
  }
  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int i = 0; i < kD / 2; ++i) dk[i] = dv[i] = 0;
    is_ready(dk);
    is_ready(dv);
  }

  // Epilogue: all of dk or dv of this work item. It is written, or stored in a slot of its own, or
  // added to sums that several CTAs share. True when something written is not finite, and for
  // sums if the rule asks for it.
  __device__ __forceinline__ bool finish(const float (&sum)[kD / 2], float scale,
                                         const device::DeviceTensor& to, int columns, float* slots,
                                         float* all_sums) const {
    const device::Work& work = shared.planned[slot.stage].work;
    const device::KeyRows keys = device::key_rows<C::tile_k, C::tile_k>(p, work, 0);
    const int own = Rule::kSparesRegisters ? int(device::thread_index()) % kWarpgroup : thread;
    const int first = first_key() + own / 32 * 16;  // of the warp
    const device::KeySums sums =
        device::key_sums<C::tile_k, C::tile_k>(p, work, keys, 0, slots, all_sums, columns);
    if (sums.rows.first == nullptr) {
      const device::TileRows<T> rows = keys.of<T>(to, p.view.stride, columns);
      return write_rows(sum, scale, rows.first + first * rows.step, rows.step, rows.count - first,
                        columns, lane());
    }
    const int row = first + lane() / 4;
#pragma unroll
    for (int i = 0; i < kD / 2; i += 2) {
      sums.take(row + i / 2 % 2 * 8, i / 4 * 8, lane() % 4 * 2, scale * sum[i], scale * sum[i + 1]);
    }
    return Rule::kChecksSums && !all_finite(sum);
  }
  static __device__ __forceinline__ bool all_finite(const float (&sum)[kD / 2]) {
    bool are = true;
#pragma unroll
    for (int i = 0; i < kD / 2; ++i) are = are && fabsf(sum[i]) < INFINITY;
    return are;
  }

  // Processes one work item after another.
  __device__ __forceinline__ void follow() {
    while (true) {
      shared.template await<kPauses>(shared.k_full[slot.stage], slot.parity);
      // Warp-uniform; the shuffle lets the compiler know.
      const int steps = __shfl_sync(~0u, shared.planned[slot.stage].num_steps, 0);
      if (steps < 0) break;
      begin();
      if (steps > 0) mainloop(steps);
      const bool bad_k = finish(dk, p.sizes.scale, p.dk, p.sizes.head_dim, p.slots.dk, p.sums.dk);
      const bool bad_v = finish(dv, 1, p.dv, p.sizes.v_head_dim, p.slots.dv, p.sums.dv);
      if (bad_k || bad_v) *p.found_nonfinite = 1;
      __syncwarp();
      arrive_as_warp(shared.planned_empty[slot.stage]);
      slot.next();
    }
    await_stores();
  }
};

// Persistent CTAs: each processes its share of the work items of all query heads. Query heads of
// one kv head add to the same sums.dk and sums.dv. tiles: which query tiles of the lists are
// followed.
template <class T, class C, class Rule, class Tiles>
__device__ __forceinline__ void follow_keys(const BackwardParams& p, const BackwardMaps& maps,
                                            const typename Rule::Numbers& numbers,
                                            const Tiles& tiles) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<KeysShared<C>*>(memory);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();

  const int warp = __shfl_sync(~0u, int(threadIdx.x / 32), 0);  // makes it provably warp-uniform
  if (warp >= kConsumerWarps) {
    shrink_registers<kProducerRegisters>();
    const int lane = int(threadIdx.x % 32);
    if (warp == kConsumerWarps && lane == 0) KeysProducer<C, Tiles>(maps, tiles, shared).load();
    if (warp == kConsumerWarps + 1 && lane == 0) plan<C>(p, tiles, shared);
    if (warp == kConsumerWarps + 2) copy_numbers<C>(p, tiles, shared, lane);
  } else {
    grow_registers<kConsumerRegisters>();
    KeysConsumer<T, C, Rule>{p, numbers, shared, warp / 4}.follow();
    shared.waits.end();
  }
}

template <class T, class C, Bend kBend>
__global__ void __launch_bounds__(kThreads, 1)
    backward_keys(const __grid_constant__ BackwardParams p,
                  const __grid_constant__ BackwardMaps maps) {
  follow_keys<T, C, SoftmaxKeys<kBend>>(p, maps, p.rule, AllTiles{});
}

}  // namespace keyhole::sm90
