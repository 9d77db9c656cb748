// src/kernels/sm90/backward_keys.cuh
// dk, dv and dq. A CTA keeps its key tile and loops over steps of queries. Scores are transposed
// (rows are keys), so that their blocks are the left operand of the next products:
//   dv += p' dout     dk += ds' q        p  = 2^(factor * k q' - lse2)   ' is transposed
//   dq  = ds k, to memory                ds = p (v dout' - delta)
// backward_shared.cuh has the pipeline. For dk, each warpgroup has ds of its own keys in registers.
// For dq, both put ds in shared memory. They take turns: one computes all of a step's dq, and only
// that one waits for the other's ds. So they drift apart, and the products of one fill the gaps of
// the other; inside a warpgroup nothing overlaps but this:
//
//   scores, v dout' | weights beside v dout' | ds | dv, dk beside the stores of ds | in turn: dq
//
// What becomes of a product is the Rule's to say, here for softmax (softmax_keys.cuh); that of
// entmax is in entmax_keys.cuh.
#pragma once

#include "kernels/sm90/backward_producer.cuh"
#include "kernels/sm90/softmax_keys.cuh"

namespace keyhole::sm90 {

// PipelineState<2>, in one register.
struct PairState {
  uint32_t uses = 0;
  __device__ __forceinline__ int stage() const { return int(uses % 2); }
  __device__ __forceinline__ uint32_t parity() const { return uses / 2 % 2; }
  __device__ __forceinline__ void next() { ++uses; }
};

template <class T, class C, class Rule>
struct KeysConsumer {
  using Keys = typename KeysShared<C>::Keys;
  using Queries = typename KeysShared<C>::Queries;
  using Shared = Panels<C::tile_k, C::tile_q>;                         // ds
  static constexpr int kD = C::head_dim, kBlocks = C::tile_q / 16;     // of 16 queries
  static constexpr int kWords = C::tile_q / 64;                        // of mask bits per lane
  static constexpr bool kPauses = Rule::kSparesRegisters && kD == 64;  // between polls
  // Scores of 128 queries leave few registers: thread numbers are asked for anew at each use, which
  // takes longer, and the bits of a mask are loaded where they are needed.
  static constexpr bool kAsksAnew = Rule::kSparesRegisters || kD == 64;
  static constexpr bool kLoadsBitsLate = kAsksAnew && !Rule::kMeetsRowLate;
  using Scores = float[C::tile_q / 2];
  using Packed = uint32_t[kBlocks][4];

  // The mask of a step.
  struct Mask {
    int32_t bitmap;
    uint32_t bits[kWords];
    __device__ __forceinline__ bool is_partial() const { return bitmap != kFull; }
  };
  using Dq = float[C::tile_q / 64][C::head_dim / 2];

  const BackwardParams& p;
  const typename Rule::Numbers& numbers;
  KeysShared<C>& shared;
  const int warpgroup;  // warp-uniform, and the compiler must be able to prove it
  PairState slot;       // of keys and planned items
  PairState state;      // of steps
  float dk[kD / 2], dv[kD / 2];
  Packed weight16, ds16;

  static __device__ __forceinline__ int thread() {
    return int((kAsksAnew ? device::thread_index() : threadIdx.x) % kWarpgroup);
  }
  static __device__ __forceinline__ int lane() { return thread() % 32; }
  __device__ __forceinline__ int first_key() const { return 64 * warpgroup; }  // of the warpgroup

  // scores = keys . queries', both [row][head_dim].
  __device__ __forceinline__ void multiply_rows(Scores& scores, const void* keys,
                                                const void* queries) const {
    const uint64_t left =
        operand_anew(smem_address(keys) + uint32_t(first_key() * 128), Keys::bytes);
    const uint64_t right = operand_anew(smem_address(queries), Queries::bytes);
    Product<T>::template begin_of_shared<false, false>(scores, left, right);
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
    const uint64_t right = operand_anew(smem_address(queries), Queries::bytes);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      Product<T>::of_registers(sum, weights[b], further(right, b * 16 * 128));
    }
  }
  // dq = ds . keys, 64 queries after the other.
  __device__ __forceinline__ void multiply_ds(Dq& dq, int stage) const {
    const uint64_t right = operand_anew(smem_address(shared.k[slot.stage()]), Keys::bytes);
#pragma unroll
    for (int i = 0; i < C::tile_q / 64; ++i) {
      const uint64_t left =
          operand_anew(smem_address(shared.ds[stage]) + uint32_t(i * Shared::bytes), Shared::bytes);
      Product<T>::template begin_of_shared<true, true>(dq[i], left, right);
#pragma unroll
      for (int b = 1; b < C::tile_k / 16; ++b) {
        Product<T>::template of_shared<false, true, true>(dq[i], further(left, b * 16 * 128),
                                                          further(right, b * 16 * 128));
      }
    }
    commit_products();
  }
  // Hands dq of a step to the warp that adds it. Steps alternate between two stages, so the stage
  // tells the parity.
  __device__ __forceinline__ void put_dq(const Dq& dq) const {
    static_assert(C::stages == 2);
    shared.await(shared.dq_empty, uint32_t(state.stage()) ^ 1);
    const DqRows& place = shared.planned[slot.stage()].dq;
    if (place.form == DqForm::written) {
      write_dq(dq, place);
    } else {
#pragma unroll
      for (int i = 0; i < C::tile_q / 64; ++i) {
        float4* const to = reinterpret_cast<float4*>(shared.dq[4 * i + thread() / 32]) + lane();
#pragma unroll
        for (int j = 0; j < kD / 8; ++j) {
          to[32 * j] = {dq[i][4 * j], dq[i][4 * j + 1], dq[i][4 * j + 2], dq[i][4 * j + 3]};
        }
      }
      publish_stores();
    }
    __syncwarp();
    arrive_as_warp(shared.dq_full);
  }
  // dq itself, in 16 bits.
  __device__ __forceinline__ void write_dq(const Dq& dq, const DqRows& place) const {
    const int64_t first_of_warp =
        int64_t{shared.tile[state.uses % kTilesInUse]} * C::tile_q + thread() / 32 * 16;
#pragma unroll
    for (int i = 0; i < C::tile_q / 64; ++i) {
      const int64_t first = first_of_warp + 64 * i;
      T* const to = static_cast<T*>(p.dq.data) + place.first + first * place.row_step;
      if (write_rows(dq[i], p.sizes.scale, to, place.row_step,
                     device::rows_left(place.num_q, first, 16), p.sizes.head_dim, lane())) {
        *p.found_nonfinite = 1;
      }
    }
  }

  __device__ __forceinline__ int32_t bitmap_of(int stage) const {
    return *const_cast<const volatile int32_t*>(&shared.bitmap[stage]);
  }
  // The mask bits of this thread's scores. Those of a full tile are used only where weights are
  // packed and masked without a branch.
  static constexpr uint32_t kNoMask = Rule::kMeetsRowLate ? ~0u : 0;
  __device__ __forceinline__ void load_bits(uint32_t (&bits)[kWords], int32_t bitmap) const {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(p.view.t_bitmaps) +
                            int64_t{bitmap} * (C::tile_k / 16 * 32 * kWords) +
                            (warpgroup * kWarpgroup + thread()) * kWords;
#pragma unroll
    for (int w = 0; w < kWords; ++w) bits[w] = bitmap == kFull ? kNoMask : words[w];
  }
  static __device__ __forceinline__ bool attends(const uint32_t (&bits)[kWords], int i) {
    return (bits[i / 32] & 1u << i % 32) != 0;
  }

  // Pairs that do not attend get 0.
  __device__ __forceinline__ void select(Mask& mask, Scores& scores) const {
    if constexpr (kLoadsBitsLate) mask.bitmap = bitmap_of(state.stage());
    if (!mask.is_partial()) return;
    if constexpr (kLoadsBitsLate) load_bits(mask.bits, mask.bitmap);
#pragma unroll
    for (int i = 0; i < C::tile_q / 2; ++i) scores[i] = attends(mask.bits, i) ? scores[i] : 0;
  }
  __device__ __forceinline__ uint32_t own_queries(const float (&numbers)[C::tile_q]) const {
    return smem_address(&numbers[lane() % 4 * 2]);
  }

  __device__ __forceinline__ void make_weights(Mask& mask, Scores& scores) const {
    await_products<1>();
    is_ready(scores);
    const Rule rule{numbers};
    if constexpr (Rule::kMeetsRowLate) {
#pragma unroll
      for (float& score : scores) score = rule.keep(score);
    } else {
      const uint32_t of_row_at = own_queries(shared.lse2[state.stage()]);
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
  // ds from weights and grad, without the scale: that is applied to dk and dq at the end. Both are
  // packed.
  __device__ __forceinline__ void make_ds(const Scores& weights, Scores& grad, int stage,
                                          Mask& mask) {
    const Rule rule{numbers};
    const uint32_t delta_at = own_queries(shared.delta[stage]);
    if constexpr (kLoadsBitsLate) mask.bitmap = bitmap_of(stage);
    const bool is_partial = mask.is_partial();
    if (kLoadsBitsLate && is_partial) load_bits(mask.bits, mask.bitmap);
#pragma unroll
    for (int i = 0; i < C::tile_q / 2; i += 4) {
      const float2 delta = device::load_shared_floats(delta_at + uint32_t(8 * i));
      grad[i] = rule.slope(weights[i]) * (grad[i] - delta.x);
      grad[i + 1] = rule.slope(weights[i + 1]) * (grad[i + 1] - delta.y);
      grad[i + 2] = rule.slope(weights[i + 2]) * (grad[i + 2] - delta.x);
      grad[i + 3] = rule.slope(weights[i + 3]) * (grad[i + 3] - delta.y);
    }
    if (is_partial) {
#pragma unroll
      for (int i = 0; i < C::tile_q / 2; ++i) grad[i] = attends(mask.bits, i) ? grad[i] : 0;
    }
#pragma unroll
    for (int i = 0; i < C::tile_q / 2; i += 2) {
      weight16[i / 8][i / 2 % 4] = device::pack_two<T>(weights[i], weights[i + 1]);
      ds16[i / 8][i / 2 % 4] = device::pack_two<T>(grad[i], grad[i + 1]);
    }
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

  // The address this lane gives to stmatrix: rows of this warp in a tile [key][..]. Block b is at
  // address ^ b % 4 * 32, b / 4 panels further.
  __device__ __forceinline__ uint32_t own_rows(const void* tile) const {
    const uint32_t row = uint32_t(first_key() + thread() / 32 * 16 + lane() % 16);
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
    if constexpr (!kLoadsBitsLate) {
      mask.bitmap = bitmap_of(state.stage());
      load_bits(mask.bits, mask.bitmap);
    }
    begin_products();
    multiply_rows(scores, shared.k[slot.stage()], shared.q[state.stage()]);
  }

  __device__ __forceinline__ void mainloop_step(bool is_first) {
    shared.template await<kPauses>(shared.is_full[state.stage()], state.parity());
    if constexpr (kAsksAnew) state.uses = uint32_t(warp_uniform(int(state.uses)));
    const int stage = state.stage();
    Mask mask;
    Scores scores, grad;
    begin_step(mask, scores);
    if (is_first) shared.await(shared.v_full, slot.uses % 2);
    begin_products();
    multiply_rows(grad, shared.v, shared.dout[stage]);
    make_weights(mask, scores);
    await_products<0>();
    is_ready(grad);
    if constexpr (Rule::kPacksAtOnce) {
      make_weights_and_ds(scores, grad, stage, mask);
    } else {
      make_ds(scores, grad, stage, mask);
    }
    begin_products();
    add_product(dv, weight16, shared.dout[stage]);
    add_product(dk, ds16, shared.q[stage]);
    commit_products();
    share_ds(stage);
    // The barrier of a stage passes when both have stored ds. Here the other warpgroup has also
    // finished its last dq, so the other stage of ds is free.
    const bool is_mine = stage == warpgroup;
    const int both_have_stored = 1 + stage;
    if (is_mine) {
      meet_at<kConsumers>(both_have_stored);
    } else {
      arrive_at<kConsumers>(both_have_stored);
    }
    await_products<0>();
    is_ready(dk);
    is_ready(dv);
    arrive_as_warp(shared.is_empty[stage]);
    if (is_mine) {
      Dq dq;
      begin_products();
      multiply_ds(dq, stage);
      await_products<0>();
#pragma unroll
      for (auto& part : dq) is_ready(part);
      put_dq(dq);
    }
    state.next();
  }

  __device__ __forceinline__ void mainloop(int steps) {
    if constexpr (kD == 64) {  // a register less than asking in every step
      shared.await(shared.v_full, slot.uses % 2);
      for (; steps > 0; --steps) mainloop_step(false);
    } else {
      for (int i = 0; i < steps; ++i) mainloop_step(i == 0);
    }
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
    const device::Work& work = shared.planned[slot.stage()].work;
    const device::KeyRows keys = device::key_rows<C::tile_k, C::tile_k>(p, work, 0);
    const int first = first_key() + thread() / 32 * 16;  // of the warp
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
      shared.template await<kPauses>(shared.k_full[slot.stage()], slot.parity());
      if constexpr (kAsksAnew) slot.uses = uint32_t(warp_uniform(int(slot.uses)));
      // Warp-uniform; the shuffle lets the compiler know.
      const int steps = __shfl_sync(~0u, shared.planned[slot.stage()].num_steps, 0);
      if (steps < 0) break;
      begin();
      if (steps > 0) mainloop(steps);
      arrive_as_warp(shared.v_empty);  // also without steps: the item's number tells the parity
      const bool bad_k = finish(dk, p.sizes.scale, p.dk, p.sizes.head_dim, p.slots.dk, p.sums.dk);
      const bool bad_v = finish(dv, 1, p.dv, p.sizes.v_head_dim, p.slots.dv, p.sums.dv);
      if (bad_k || bad_v) *p.found_nonfinite = 1;
      __syncwarp();
      arrive_as_warp(shared.planned_empty[slot.stage()]);
      slot.next();
    }
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
    if (warp == kConsumerWarps + 1 && lane == 0) plan(p, tiles, shared);
    if (warp == kConsumerWarps + 2) copy_numbers<C>(p, tiles, shared, lane);
    if (warp == kConsumerWarps + 3) take_dq<C>(p, shared, lane == 0);
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
