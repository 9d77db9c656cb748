// src/kernels/sm90/forward_consumer.cuh
// The consumer warpgroups and the mainloop. While the tensor cores multiply the values of one tile,
// a thread computes the weights of the next one:
//
//   scores(i) = q . k(i)'   |  out += weights(i - 1) . v(i - 1)   both issued, in this order
//   scores(i) are ready     |  mask, exponentials, weights(i)     while the second one still runs
//
// Weights alternate between two sets of registers: one is written while a product reads the other.
// The loop has one step for each set.
//
// Between two lists, where kJoins overlaps them:
//
//   out += weights(n - 1) . v(n - 1)  |  scores(0) of the next list   both issued, in this order
//   out is ready                      |  results stored               while the second still runs
//
// The order inside a step, what is polled early and what is waited for late were measured, as was
// the code that ptxas makes of them: scripts/sass_facts.py checks what must hold.
#pragma once

#include "kernels/sm90/forward_epilogue.cuh"

namespace keyhole::sm90 {

// Multiplies a warpgroup's 64 queries by the sign of the scale, so that 0 x NaN and the sign of
// infinity follow the definition.
template <class C>
__device__ __forceinline__ void change_sign_of_queries(uint32_t queries, int32_t sign,
                                                       int warpgroup) {
  using Queries = typename ForwardShared<C>::Queries;
#pragma unroll 1
  for (int panel = 0; panel < Queries::count; ++panel) {
#pragma unroll 1
    for (int at = 16 * int(threadIdx.x % kWarpgroup); at < 64 * 128; at += 16 * kWarpgroup) {
      const uint32_t place = queries + uint32_t(panel * Queries::bytes + at);
      uint4 eight = device::load_shared_vector(place);
      for (uint32_t* two : {&eight.x, &eight.y, &eight.z, &eight.w}) {
        *two = sign < 0 ? *two ^ 0x80008000u : 0;
      }
      device::store_shared_vector(place, eight);
    }
  }
  publish_stores();
  meet_at<kWarpgroup>(kSignBarrier + warpgroup);
}

template <class T, class C, Bend kBend>
class Consumer {
 public:
  // warp: index among the consumer warps.
  __device__ Consumer(const ForwardParams& p, const CallRule<kBend>& call, ForwardShared<C>& shared,
                      int warp)
      : p_(p),
        call_(call),
        shared_(shared),
        warpgroup_(warp / 4),
        words_(reinterpret_cast<const uint32_t*>(p.view.bitmaps) +
               (warpgroup_ * kWarpgroup + thread()) * kMaskWords) {
    asm volatile("" : "+l"(words_));  // else recomputed for every tile
  }

  __device__ __forceinline__ void multiply() {
    if (warpgroup_ == kConsumers - 1) signal_ping_pong<kHasPingPong>();
    Scores scores;
    Out out;
    uint32_t bits[kMaskWords];
    int32_t tiles = await_item();  // every CTA has at least one
    uint64_t queries = start_first_scores(scores, bits, true);
    while (tiles > 0) {
      mainloop(scores, out, bits, queries, tiles);

      const uint32_t ended = num_items_ - 1;
      if constexpr (!kStoresByQueries) arrive_as_warp(shared_.q_empty[ended % C::q_stages]);
      multiply_last_values(out, tiles);
      const RowStatistics end = row_statistics(rows_);
      if constexpr (kJoins) {
        tiles = await_item();
        queries = start_first_scores(scores, bits, tiles > 0);
      }
      await_products<kJoins ? 1 : 0>();
      is_ready(out);
      arrive_as_warp(shared_.v_empty[v_.stage]);
      v_.next();
      store(shared_.planned[ended % kPlannedItems], ended % C::q_stages, out, end);
      arrive_as_warp(shared_.planned_empty[ended % kPlannedItems]);
      if constexpr (!kJoins) {
        tiles = await_item();
        queries = start_first_scores(scores, bits, tiles > 0);
      }
    }
    await_products<0>();
    is_ready(scores);
    if (kStoresByQueries && thread() % 32 == 0) await_reads_of_stores();
  }

 private:
  using Shape = ForwardShape<C>;
  using Queries = typename ForwardShared<C>::Queries;
  using Keys = typename ForwardShared<C>::Keys;
  static constexpr int kConsumers = Shape::consumers, kMaskWords = Shape::mask_words;
  using Scores = float[C::tile_k / 2];
  using Out = float[C::head_dim / 2];
  using Weights = uint32_t[C::tile_k / 16][4];

  static __device__ __forceinline__ int thread() {
    return int(device::thread_index() % kWarpgroup);
  }

  // The warp's index among the consumers. Recomputed at the end of a list: the mainloop has no
  // register for it.
  static __device__ __forceinline__ int warp_now() {
    return __shfl_sync(~0u, int(device::thread_index() / 32), 0) - kProducerWarps;
  }

  // Waits for the queries of the next work item and returns its number of tiles; 0: no more work.
  // The shuffle makes it provably warp-uniform; otherwise operands would leave the uniform
  // registers.
  __device__ __forceinline__ int32_t await_item() {
    shared_.await(shared_.q_full[num_items_ % C::q_stages], num_items_ / C::q_stages % 2);
    return __shfl_sync(~0u, shared_.planned[num_items_ % kPlannedItems].num_tiles, 0);
  }

  // Ping-pong: warpgroups alternate at issuing products, so that one computes exponentials while
  // another multiplies. Two warpgroups do so at the first tile of a list, and at every other tile
  // where the configuration says so.
  static constexpr bool kHasPingPong = kConsumers > 1;
  static constexpr bool kPingPongAtFirst = kConsumers == 2;
  static constexpr bool kPingPongAtOthers = kHasPingPong && C::ping_pong_at_every_tile;
  template <bool kIsTaken>
  __device__ __forceinline__ void await_ping_pong() const {
    if constexpr (kIsTaken) meet_at<2 * kWarpgroup>(kPingPongBarrier + warpgroup_);
  }
  template <bool kIsTaken>
  __device__ __forceinline__ void signal_ping_pong() const {
    if constexpr (kIsTaken) {
      const int next = warpgroup_ + 1 == kConsumers ? 0 : warpgroup_ + 1;
      arrive_at<2 * kWarpgroup>(kPingPongBarrier + next);
    }
  }

  // Leaves bits as they are in a full tile. Predicated, not branched around: nothing may stand
  // between the issue of two products. A plain load: other loads sink below the wait that follows.
  __device__ __forceinline__ void load_bits(uint32_t (&bits)[kMaskWords]) const {
    constexpr uint32_t kWords = kConsumers * kWarpgroup * kMaskWords;  // of a bitmap
    const uint32_t* const at = words_ + uint64_t{uint32_t(bitmap_)} * kWords;
    if constexpr (kMaskWords == 1) {
      asm volatile("{\n.reg .pred p;\nsetp.ge.s32 p, %1, 0;\n@p ld.global.u32 %0, [%2];\n}"
                   : "+r"(bits[0])
                   : "r"(bitmap_), "l"(at)
                   : "memory");
    } else {
      static_assert(kMaskWords == 2);
      asm volatile("{\n.reg .pred p;\nsetp.ge.s32 p, %2, 0;\n@p ld.global.v2.u32 {%0, %1}, [%3];\n}"
                   : "+r"(bits[0]), "+r"(bits[1])
                   : "r"(bitmap_), "l"(at)
                   : "memory");
    }
  }
  // Pairs that do not attend are replaced by selection, whatever their score.
  static __device__ __forceinline__ void apply_mask(Scores& scores,
                                                    const uint32_t (&bits)[kMaskWords]) {
#pragma unroll
    for (int i = 0; i < C::tile_k / 2; ++i) {
      scores[i] = (bits[i / 32] >> i % 32 & 1) != 0 ? scores[i] : -INFINITY;
    }
  }

  __device__ __forceinline__ void multiply_keys(Scores& scores, uint64_t queries) const {
    const uint64_t keys = operand(smem_address(shared_.k[k_.stage]), Keys::bytes);
    // Adds 0, but ptxas cannot know. Otherwise it would keep the descriptor of every product in
    // uniform registers, and there are not enough.
    if constexpr (C::head_dim > 128) queries += uint64_t(k_.stage >> 4);
    Product<T>::template of_shared<true, false, false>(scores, queries, keys);
#pragma unroll
    for (int d = 1; d < C::head_dim / 16; ++d) {
      Product<T>::template of_shared<false, false, false>(
          scores, further(queries, d / 4 * Queries::bytes + d % 4 * 32),
          further(keys, d / 4 * Keys::bytes + d % 4 * 32));
    }
    commit_products();
  }
  __device__ __forceinline__ void multiply_values(Out& out, const Weights& weights) const {
    const uint64_t values = operand(smem_address(shared_.v[v_.stage]), Keys::bytes);
#pragma unroll
    for (int b = 0; b < C::tile_k / 16; ++b) {
      Product<T>::of_registers(out, weights[b], further(values, b * 16 * 128));
    }
    commit_products();
  }

  // length: tiles in the list. Each branch calls begin_products itself, or ptxas would insert it
  // there (C7519).
  __device__ __forceinline__ void multiply_last_values(Out& out, int32_t length) const {
    if (length % 2 == 0) {
      begin_products();
      multiply_values(out, weights_[1]);
    } else {
      begin_products();
      multiply_values(out, weights_[0]);
    }
  }

  // The stage of the queries is also the staging buffer of out, if a second stage can take the next
  // queries meanwhile.
  static constexpr bool kStoresByQueries = C::q_stages > 1;
  // Overlaps two lists: the last values of one are multiplied, and its results stored, beside the
  // first scores of the next. Not with one stage of queries, because the next ones cannot load yet.
  // Not with one warpgroup, whose next queries arrive too late for its short lists. Not with three,
  // which hide each other's ends and lack the registers.
  static constexpr bool kJoins = kStoresByQueries && kConsumers == 2;

  // Issues Q.K' of the next work item. After the last item this multiplies stale shared memory; the
  // result is unused. One wasted product per CTA is cheaper than a branch per item.
  __device__ __forceinline__ uint64_t start_first_scores(Scores& scores,
                                                         uint32_t (&bits)[kMaskWords],
                                                         bool has_item) {
    const int warpgroup = warp_now() / 4;
    const uint32_t rows =
        smem_address(shared_.q[num_items_ % C::q_stages]) + uint32_t(warpgroup * 64 * 128);
    ++num_items_;
    if (has_item && call_.sign != 1) change_sign_of_queries<C>(rows, call_.sign, warpgroup);
    const uint64_t queries = operand(rows, Queries::bytes);
    if (has_item) shared_.await(shared_.k_full[k_.stage], k_.parity);
    bitmap_ = has_item ? shared_.bitmap[k_.stage] : kFull;
#pragma unroll
    for (uint32_t& word : bits) word = 0;  // load_bits leaves those of a full tile untouched
    load_bits(bits);
    await_ping_pong<kPingPongAtFirst>();
    begin_products();
    multiply_keys(scores, queries);
    signal_ping_pong<kPingPongAtFirst>();
    return queries;
  }

  __device__ __forceinline__ void mainloop(Scores& scores, Out& out,
                                           const uint32_t (&bits)[kMaskWords], uint64_t queries,
                                           int32_t tiles) {
    take_first_scores(scores, out, bits, tiles > 1);
    for (int32_t i = 1; i < tiles; i += 2) {
      int32_t left = tiles - i;
      asm volatile("" : "+r"(left));  // hides that it is uniform: else it is tested too early
      mainloop_step<0>(scores, out, queries, left > 1);
      if (left == 1) break;
      mainloop_step<1>(scores, out, queries, left > 2);
    }
  }

  __device__ __forceinline__ void store(const PlannedItem& planned, uint32_t q_stage, Out& out,
                                        const RowStatistics& end) const {
    const int32_t row = warp_now() * kWarpRows;  // the warp's first row
    if constexpr (kStoresByQueries) {
      const StagingBuffer<C> staging(smem_address(shared_.q[q_stage]) + uint32_t(row * 128));
      if (store_rows_at_once<T>(p_, planned, row, staging, out, end)) return;
    }
    store_rows<T, C>(p_, planned.result, row, out, end);
  }

  // Releases the stage of the previous item's queries, once its output has been read out of it.
  __device__ __forceinline__ void give_back_queries() const {
    if (!kStoresByQueries || num_items_ < 2 || thread() % 32 != 0) return;
    await_reads_of_stores();
    arrive(shared_.q_empty[(num_items_ - 2) % C::q_stages]);
  }

  // The first tile of a list: its scores are already issued. Sets row maxima and weights.
  __device__ __forceinline__ void take_first_scores(Scores& scores, Out& out,
                                                    const uint32_t (&bits)[kMaskWords],
                                                    bool has_more) {
    await_products<0>();
    is_ready(scores);
    // Cleared here, not by a product that overwrites: ptxas would then keep these registers alive
    // through the end of the previous list, where rows may be recomputed.
#pragma unroll
    for (int i = 0; i < C::head_dim / 2; ++i) out[i] = 0;
    is_ready(out);
    arrive_as_warp(shared_.k_empty[k_.stage]);
    k_.next();
    bend_products(scores, call_);
    if (bitmap_ != kFull) apply_mask(scores, bits);
    const bool has_keys = is_over_now(shared_.k_full[k_.stage], k_.parity);
    const bool has_values = is_over_now(shared_.v_full[v_.stage], v_.parity);
    rows_.minus_row_max[0] = rows_.minus_row_max[1] = FLT_MAX;
    raise_row_max(rows_, scores, call_);
    make_weights<T>(weights_[0], rows_.sum, scores, rows_, call_);
    give_back_queries();
    if (has_more) {
      shared_.await(shared_.k_full[k_.stage], k_.parity, has_keys);
      bitmap_ = shared_.bitmap[k_.stage];
    }
    shared_.await(shared_.v_full[v_.stage], v_.parity, has_values);
  }

  // One more tile, and the values of the tile before it. Both have arrived, so nothing stands
  // between the two products. kOld: the set of weights of the previous tile.
  template <int kOld>
  __device__ __forceinline__ void mainloop_step(Scores& scores, Out& out, uint64_t queries,
                                                bool has_more) {
    uint32_t bits[kMaskWords];  // unset for a full tile; clearing takes an instruction
#pragma unroll
    for (uint32_t& word : bits) asm volatile("" : "=r"(word));
    load_bits(bits);
    await_ping_pong<kPingPongAtOthers>();
    begin_products();
    multiply_keys(scores, queries);
    multiply_values(out, weights_[kOld]);
    signal_ping_pong<kPingPongAtOthers>();
    await_products<1>();
    is_ready(scores);
    arrive_as_warp(shared_.k_empty[k_.stage]);
    k_.next();
    const int old_values = v_.stage;
    v_.next();
    bend_products(scores, call_);
    if (bitmap_ != kFull) apply_mask(scores, bits);

    // Polled here, needed after the exponentials; not before the mask, which needs all predicates.
    const bool has_keys = is_over_now(shared_.k_full[k_.stage], k_.parity);
    const bool has_values = is_over_now(shared_.v_full[v_.stage], v_.parity);
    Weights& weights = weights_[1 - kOld];
    float sum[2];
    make_weights<T>(weights, sum, scores, rows_, call_);
    const bool is_wrong = is_guess_wrong<T>(sum);

    // These loops keep ptxas from moving the wait for products above the exponentials.
    if (has_more && !has_keys) shared_.await(shared_.k_full[k_.stage], k_.parity);
    bitmap_ = shared_.bitmap[k_.stage];  // after the last tile: another list's, unused
    shared_.await(shared_.v_full[v_.stage], v_.parity, has_values);
    // out is needed here only if a guess was wrong, but the warps of a warpgroup must wait
    // together.
    await_products<0>();
    is_ready(out);
    arrive_as_warp(shared_.v_empty[old_values]);
    if (__builtin_expect(is_wrong, 0)) {
      const Rescale rescale = raise_row_max(rows_, scores, call_);
      make_weights<T>(weights, sum, scores, rows_, call_);
      rows_.sum[0] *= rescale.of_row[0];
      rows_.sum[1] *= rescale.of_row[1];
#pragma unroll
      for (int i = 0; i < C::head_dim / 2; ++i) out[i] *= rescale.of_row[i / 2 % 2];
    }
    rows_.sum[0] += sum[0];
    rows_.sum[1] += sum[1];
  }

  const ForwardParams& p_;
  const CallRule<kBend>& call_;
  ForwardShared<C>& shared_;
  const int warpgroup_;     // among the consumers
  const uint32_t* words_;   // this thread's, in the first bitmap
  uint32_t num_items_ = 0;  // items whose first scores were issued
  PipelineState<C::k_stages> k_;
  PipelineState<C::v_stages> v_;
  int32_t bitmap_;      // of the next tile
  Weights weights_[2];  // tiles alternate; a list begins with set 0
  Rows rows_;
};

}  // namespace keyhole::sm90
