// src/kernels/sm90/backward_keys.cuh
// dk, dv and dq. A CTA keeps its key tile and loops over steps of queries. Scores are transposed
// (rows are keys), so that their blocks are the left operand of the next products:
//   dv += p' dout     dk += ds' q        p  = 2^(factor * k q' - lse2)   ' is transposed
//   dq  = ds k, to memory                ds = p (v dout' - delta)
// backward_shared.cuh has the pipeline. For dk, each warpgroup has ds of its own keys in registers,
// and some columns of their values. For dq, both put ds in shared memory. They take turns: one
// computes all of a step's dq, and only that one waits for the other's ds. So they drift apart, and
// the products of one fill the gaps of the other; inside a warpgroup nothing overlaps but this:
//
//   scores, v dout' | weights beside v dout' | ds | dv, dk beside the stores of ds | in turn: dq
//
// What becomes of a product is the Rule's to say, here for softmax (softmax_keys.cuh); that of
// entmax is in entmax_keys.cuh.
#pragma once

#include "kernels/mma/ptx.cuh"
#include "kernels/sm90/backward_epilogue.cuh"
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

// Columns of a thread's keys or values as left operands of products, 16 a step. Of none, the one
// that there is remains unused.
template <int kSteps>
struct Columns {
  uint32_t step[kSteps > 0 ? kSteps : 1][4];
};

template <DqOrder kOrder, class T, class C, class Rule>
struct KeysConsumer {
  using Keys = typename KeysShared<C>::Keys;
  using Queries = typename KeysShared<C>::Queries;
  using Shared = Panels<C::tile_k, C::tile_q>;                         // ds
  static constexpr int kD = C::head_dim, kBlocks = C::tile_q / 16;     // of 16 queries
  static constexpr int kWords = C::tile_q / 64;                        // of mask bits per lane
  static constexpr bool kPauses = Rule::kSparesRegisters && kD == 64;  // between polls
  static constexpr int kKeySteps = Rule::kSparesRegisters ? 0 : C::key_steps;
  static constexpr int kValueSteps = Rule::kSparesRegisters ? 0 : C::value_steps;
  // Few registers: thread numbers are asked for anew at each use, and the bits of a mask are loaded
  // where they are needed.
  static constexpr bool kAsksAnew = Rule::kSparesRegisters || kD == 64 || kValueSteps > 0;
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
  const BackwardMaps& maps;
  const typename Rule::Numbers& numbers;
  KeysShared<C>& shared;
  const int warpgroup;  // warp-uniform, and the compiler must be able to prove it
  PairState slot;       // of keys and planned items
  PairState state;      // of steps
  float dk[kD / 2], dv[kD / 2];
  Packed weight16, ds16;
  Columns<kKeySteps> keys;
  Columns<kValueSteps> values;

  static __device__ __forceinline__ int thread() {
    return int((kAsksAnew ? device::thread_index() : threadIdx.x) % kWarpgroup);
  }
  static __device__ __forceinline__ int lane() { return thread() % 32; }
  __device__ __forceinline__ int first_key() const { return 64 * warpgroup; }  // of the warpgroup

  // scores = keys . queries', both [row][head_dim]. The first kSteps * 16 columns of the keys come
  // from registers; those from shared memory begin the product.
  template <int kSteps>
  __device__ __forceinline__ void multiply_rows(Scores& scores, const Columns<kSteps>& in_registers,
                                                const void* keys, const void* queries) const {
    const uint64_t left =
        operand_anew(smem_address(keys) + uint32_t(first_key() * 128), Keys::bytes);
    const uint64_t right = operand_anew(smem_address(queries), Queries::bytes);
    const auto left_at = [&](int d) { return further(left, d / 4 * Keys::bytes + d % 4 * 32); };
    const auto right_at = [&](int d) {
      return further(right, d / 4 * Queries::bytes + d % 4 * 32);
    };
    if constexpr (kSteps < kD / 16) {
      Product<T>::template begin_of_shared<false, false>(scores, left_at(kSteps), right_at(kSteps));
    } else {
      Product<T>::template of_register_rows<true>(scores, in_registers.step[0], right_at(0));
    }
#pragma unroll
    for (int d = kSteps + 1; d < kD / 16; ++d) {
      Product<T>::template of_shared<false, false, false>(scores, left_at(d), right_at(d));
    }
#pragma unroll
    for (int d = kSteps < kD / 16 ? 0 : 1; d < kSteps; ++d) {
      Product<T>::template of_register_rows<false>(scores, in_registers.step[d], right_at(d));
    }
    commit_products();
  }
  // Own rows of keys or values.
  template <int kSteps>
  __device__ __forceinline__ void load_columns(Columns<kSteps>& to, const void* keys) const {
    const uint32_t at = own_rows(keys);
#pragma unroll
    for (int d = 0; d < kSteps; ++d) {
      mma::load_matrices(to.step[d], (at ^ uint32_t(d % 4 * 32)) + uint32_t(d / 4 * Keys::bytes));
    }
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
    if constexpr (kOrder == DqOrder::written) {
      write_dq(dq, shared.planned[slot.stage()].dq);
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
        int64_t{shared.steps[state.uses % kStepPlaces].tile} * C::tile_q + thread() / 32 * 16;
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

  __device__ __forceinline__ int32_t bitmap() const {
    return *const_cast<const volatile int32_t*>(&shared.steps[state.uses % kStepPlaces].bitmap);
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
    if constexpr (kLoadsBitsLate) mask.bitmap = bitmap();
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
    if constexpr (kLoadsBitsLate) mask.bitmap = bitmap();
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

  // A step of the list. Where a mask leaves nothing of this warpgroup's keys, as at the edges of a
  // window, it only puts zeros where the other expects its ds, and goes ahead.
  __device__ __forceinline__ void step(bool is_first, bool is_last) {
    shared.template await<kPauses>(shared.is_full[state.stage()], state.parity());
    if constexpr (kAsksAnew) state.uses = uint32_t(warp_uniform(int(state.uses)));
    const int stage = state.stage();
    if (is_idle()) {
      if (is_last) arrive_as_warp(shared.v_empty);
#pragma unroll
      for (auto& block : ds16) block[0] = block[1] = block[2] = block[3] = 0;
      if (is_first) await_reads_of_item_before();
      exchange_ds(stage);
    } else {
      begin_products();
      weigh(stage, is_first, is_last);
      begin_products();
      add_product(dv, weight16, shared.dout[stage]);
      add_product(dk, ds16, shared.q[stage]);
      commit_products();
      exchange_ds(stage);
      await_products<0>();
      is_ready(dk);
      is_ready(dv);
    }
    arrive_as_warp(shared.is_empty[stage]);
    if (stage == warpgroup) {
      Dq dq;
      begin_products();
      multiply_ds(dq, stage);
      await_products<0>();
#pragma unroll
      for (auto& part : dq) is_ready(part);
      if (is_last) arrive_at<kConsumers>(Meeting::dq_is_done);
      put_dq(dq);
    } else if (is_last) {
      meet_at<kConsumers>(Meeting::dq_is_done);
    }
    state.next();
  }
  __device__ __forceinline__ bool is_idle() const {
    return *const_cast<const volatile int32_t*>(
               &shared.steps[state.uses % kStepPlaces].idle_warpgroup) == warpgroup;
  }
  // weight16 and ds16 of a step.
  __device__ __forceinline__ void weigh(int stage, bool is_first, bool is_last) {
    Mask mask;
    Scores scores, grad;
    if constexpr (!kLoadsBitsLate) {
      mask.bitmap = bitmap();
      load_bits(mask.bits, mask.bitmap);
    }
    multiply_rows(scores, keys, shared.k[slot.stage()], shared.q[stage]);
    begin_products();
    multiply_rows(grad, values, shared.v, shared.dout[stage]);
    if (is_first) await_reads_of_item_before();
    make_weights(mask, scores);
    await_products<0>();
    is_ready(grad);
    if (is_last) arrive_as_warp(shared.v_empty);
    if constexpr (Rule::kPacksAtOnce) {
      make_weights_and_ds(scores, grad, stage, mask);
    } else {
      make_ds(scores, grad, stage, mask);
    }
  }
  // Once the other warpgroup has stored its ds, it has also finished its last dq, so the other
  // stage of ds is free.
  __device__ __forceinline__ void exchange_ds(int stage) const {
    share_ds(stage);
    if (stage == warpgroup) {
      meet_at<kConsumers>(Meeting::both_stored_ds + stage);
    } else {
      arrive_at<kConsumers>(Meeting::both_stored_ds + stage);
    }
  }

  __device__ __forceinline__ void mainloop(int steps) {
    load_columns(keys, shared.k[slot.stage()]);
    shared.await(shared.v_full, slot.uses % 2);
    load_columns(values, shared.v);
    bool is_first = true;
    do {
      step(is_first, steps == 1);
      is_first = false;
    } while (--steps != 0);
  }
  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int i = 0; i < kD / 2; ++i) dk[i] = dv[i] = 0;
    is_ready(dk);
    is_ready(dv);
  }

  // ---- Epilogue ----

  __device__ __forceinline__ void meet_warpgroup() const {
    meet_at<kWarpgroup>(Meeting::has_staged + warpgroup);
  }
  // TMA may still read what was staged of the item before. Then its keys may be loaded anew, and
  // this warpgroup may store ds and stage again.
  __device__ __forceinline__ void await_reads_of_item_before() const {
    if (slot.uses == 0) return;
    if (thread() == 0) {
      await_reads_of_stores();
      arrive(shared.planned_empty[slot.stage() ^ 1]);
    }
    meet_warpgroup();
  }
  // Own rows of the keys for dk, own rows of ds for dv: a panel of each stage.
  __device__ __forceinline__ void store_gradients(const device::Work& work) {
    const auto own = [&](const void* tile, uint32_t apart) {
      return StagedRows{smem_address(tile) + uint32_t(first_key() * 128), apart};
    };
    const StagedRows dk_rows = own(shared.k[slot.stage()], Keys::bytes);
    const StagedRows dv_rows = own(shared.ds[0], sizeof(shared.ds[0]));
    const bool bad_v = stage_rows<T, kD>(dv, 1, dv_rows);
    const bool bad_k = stage_rows<T, kD>(dk, p.sizes.scale, dk_rows);
    if (bad_k || bad_v) *p.found_nonfinite = 1;
    publish_stores();
    meet_warpgroup();
    if (thread() == 0) {
      const int32_t first_row = work.row_tile * C::tile_k + first_key();
      store_rows<kD>(maps.dv, dv_rows, work, first_row);
      store_rows<kD>(maps.dk, dk_rows, work, first_row);
      commit_stores();
    }
  }
  __device__ __forceinline__ void add_gradients(const device::Work& work) {
    const auto meet = [&] { meet_warpgroup(); };
    if constexpr (kOrder == DqOrder::by_turns) {
      await_turn_of_head(p, shared.planned[slot.stage()], warpgroup, thread() == 0, meet);
    }
    add_sums<C>(p, work, first_key(), dk, p.sizes.scale, p.sizes.head_dim, p.slots.dk, p.sums.dk);
    add_sums<C>(p, work, first_key(), dv, 1, p.sizes.v_head_dim, p.slots.dv, p.sums.dv);
    if (Rule::kChecksSums && !(all_finite(dk) && all_finite(dv))) *p.found_nonfinite = 1;
    if constexpr (kOrder == DqOrder::by_turns) {
      end_turn_of_head(p, shared.planned[slot.stage()], warpgroup, thread() == 0, meet);
    }
    meet_warpgroup();  // none of its warps reads the item any more
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
      if (steps > 0) {
        mainloop(steps);
      } else {
        await_reads_of_item_before();
        arrive_as_warp(shared.v_empty);  // the item's number tells the parity
      }
      const device::Work& work = shared.planned[slot.stage()].work;
      if (work.slot >= 0 || p.sums.dk != nullptr) {
        add_gradients(work);
      } else {
        store_gradients(work);
      }
      slot.next();
    }
    if (thread() == 0) await_stores();
  }
};

// Persistent CTAs: each processes its share of the work items of all query heads. Query heads of
// one kv head add to the same sums.dk and sums.dv. tiles: which query tiles of the lists are
// followed. By turns, gradients are added up in a fixed order (backward_turns.cuh).
template <DqOrder kOrder, class T, class C, class Rule, class Tiles>
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
    // If launched early: lists and tensors are there. What is prepared for this launch (delta,
    // sums, counters of turns) may not be.
    if (warp == kConsumerWarps && lane == 0) KeysProducer<C>(maps, shared).load();
    if (kOrder == DqOrder::by_turns || warp > kConsumerWarps + 1) device::await_launch_before();
    if (warp == kConsumerWarps + 1 && lane == 0) plan_steps<kOrder>(p, tiles, shared);
    if (warp == kConsumerWarps + 2) copy_numbers<kOrder>(p, shared);
    if (warp == kConsumerWarps + 3) take_dq<kOrder>(p, shared);
  } else {
    grow_registers<kConsumerRegisters>();
    device::await_launch_before();
    KeysConsumer<kOrder, T, C, Rule>{p, maps, numbers, shared, warp / 4}.follow();
  }
}

template <class T, class C, Bend kBend, DqOrder kOrder>
__global__ void __launch_bounds__(kThreads, 1)
    backward_keys(const __grid_constant__ BackwardParams p,
                  const __grid_constant__ BackwardMaps maps) {
  follow_keys<kOrder, T, C, SoftmaxKeys<kBend>>(p, maps, p.rule, AllTiles{});
}

}  // namespace keyhole::sm90
