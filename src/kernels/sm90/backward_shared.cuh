// src/kernels/sm90/backward_shared.cuh
// The pipeline of the backward kernel: the roles, what they share, and who waits for whom.
//
// CTAs are persistent. Each processes transposed lists one after another: a key tile, and step by
// step the query tiles that attend to it. Two warpgroups are consumers, 64 keys each; the third is
// the producer:
//
//   planner   1 thread  reads the CTA's work items, makes a PlannedKeys of each, and walks its list
//   producer  1 thread  starts the TMA copies of one item after another, as stages become free:
//                       K, q0 dout0, V, q1 dout1, ...
//   numbers   1 warp    copies lse2 and delta of each step, which are strided in a residue class,
//                       and finds out who has no pairs in it, and its turn (backward_turns.cuh)
//   dq        1 warp    adds dq of each step to memory (backward_dq.cuh)
//
// Consumers need nearly all registers, so these four have 24 each. Only the planner follows runs.
// The others find in shared memory what they need, in every step anew.
//
// Barrier          completes a phase when                                       who waits
//   is_planned     the planner has written the item of that slot                other producers
//   k_full         its keys have arrived (or it has no steps, or is the last)   consumers
//   planned_empty  keys and item have been used for the last time               planner
//   step_full      the planner has written the step of that place               producer, numbers
//   turn_known     numbers has found out the step's turn                        dq
//   step_empty     its dq has been added                                        planner
//   v_full         the values of an item have arrived                           consumers
//   v_empty        every warp has finished its last product with them, or       producer
//                  passes it over
//   is_full        q, dout, lse2 and delta of that stage have arrived, and      consumers
//                  numbers has found out who is idle
//   is_empty       every warp has used them for the last time                   producer, numbers
//   dq_full        a warpgroup has staged dq of a step                          dq
//   dq_empty       it has been read                                             consumers
// by number (Meeting):
//   both_stored_ds  of a stage: both warpgroups have stored ds                  whose turn it is
//   dq_is_done     the last dq of an item is computed                           the other
//   has_staged     a warpgroup has staged its gradients; may stage again        itself
//
// Keys have two slots, values one: values are free before the sums of the last step, and those of
// the next item arrive while the gradients of this one are staged. At the end of an item dk is
// staged in place of its keys, and dv in place of ds; TMA stores them while the next item begins
// (backward_epilogue.cuh).
#pragma once

#include "kernels/device/key_rows.cuh"
#include "kernels/sm90/backward_config.h"
#include "kernels/sm90/stages.cuh"

namespace keyhole::sm90 {

using device::BackwardParams;

inline constexpr int kThreads = 3 * kWarpgroup, kConsumers = 2 * kWarpgroup;
inline constexpr int kConsumerWarps = kConsumers / 32;
// Registers per thread. The launch gives 168 to each of 384 threads; setmaxnreg moves them.
inline constexpr int kConsumerRegisters = 240, kProducerRegisters = 24;
inline constexpr int kSlots = 2;  // for keys and planned items
// Named barriers; __syncthreads() uses number 0.
struct Meeting {
  static constexpr int both_stored_ds = 1;  // and 2, of the other stage
  static constexpr int dq_is_done = 3;
  static constexpr int has_staged = 4;  // and 5, of the other warpgroup
};

// A step of a list: a query tile. Step n of the CTA has place n modulo kStepPlaces.
struct PlannedStep {
  int32_t tile, bitmap;
  int32_t turn;  // backward_turns.cuh
  // The warpgroup that has no pairs in the tile, the second if neither has any. -1: both have some.
  int32_t idle_warpgroup;
};
inline constexpr int kStepPlaces = 8;
// Where dq of a work item's queries goes: to the fp32 sums, stored in blocks or in rows, or to dq
// itself. Offsets in elements, not pointers: ptxas would not know that those point to global
// memory.
enum class DqForm : int32_t { blocks, rows, written };
struct DqRows {
  int64_t first;     // of the residue class
  int64_t row_step;  // between its queries
  int64_t num_q;     // of the class
  DqForm form;
};
// Where turns are told (backward_turns.cuh): the list and the counter of query tile 0 in the item's
// head and class; the counters of its keys.
struct TurnRows {
  int64_t first_list, first_counter, keys_counter;
};
// One key tile of one query head and the query tiles that attend to it, or a chunk of them.
struct PlannedKeys {
  int32_t num_steps;  // -1: there is no more work
  uint32_t end_step;  // the number of steps up to its end, over all items of the CTA
  device::Work work;
  DqRows dq;
  TurnRows turns;
};

template <class C>
struct KeysShared {
  using Keys = Panels<C::tile_k, C::head_dim>;  // and values
  using Queries = Panels<C::tile_q, C::head_dim>;
  static constexpr uint32_t k_bytes = Keys::bytes * Keys::count;
  static constexpr uint32_t q_bytes = Queries::bytes * Queries::count;
  alignas(1024) unsigned char k[kSlots][k_bytes];  // 1024: the period of the swizzle
  unsigned char v[k_bytes];
  unsigned char q[C::stages][q_bytes], dout[C::stages][q_bytes];
  uint16_t ds[C::stages][C::tile_k * C::tile_q];            // [key][query], one per stage
  alignas(128) float dq[C::tile_q / 16][16 * C::head_dim];  // staged in blocks (query_blocks.cuh)
  float lse2[C::stages][C::tile_q], delta[C::stages][C::tile_q];
  PlannedKeys planned[kSlots];
  PlannedStep steps[kStepPlaces];
  uint64_t is_planned[kSlots], k_full[kSlots], planned_empty[kSlots];
  uint64_t step_full[kStepPlaces], step_empty[kStepPlaces], turn_known[kStepPlaces];
  uint64_t v_full, v_empty;
  uint64_t is_full[C::stages], is_empty[C::stages];
  uint64_t dq_full, dq_empty;

  __device__ void init() {
    constexpr int kProducers = 3;  // producer, numbers, dq
    for (int i = 0; i < kSlots; ++i) {
      init_barrier(is_planned[i], 1);
      init_barrier(k_full[i], 1);
      init_barrier(planned_empty[i], kConsumers / kWarpgroup + kProducers);
    }
    for (int i = 0; i < kStepPlaces; ++i) {
      init_barrier(step_full[i], 1);
      init_barrier(step_empty[i], 1);
      init_barrier(turn_known[i], 1);
    }
    init_barrier(v_full, 1);
    init_barrier(v_empty, kConsumerWarps);
    for (int i = 0; i < C::stages; ++i) {
      init_barrier(is_full[i], 2 + 32);  // the producer, numbers and its lanes
      init_barrier(is_empty[i], kConsumerWarps);
    }
    init_barrier(dq_full, kWarpgroup / 32);
    init_barrier(dq_empty, 1);
    publish_barriers();
  }
  template <bool kSleeps = false>
  __device__ __forceinline__ void await(uint64_t& barrier, uint32_t parity) {
    mma::await_phase<kSleeps>(barrier, parity);
  }
  // For dq, which waits for all others, to the end.
  __device__ __forceinline__ void await_or_raise(uint64_t& barrier, uint32_t parity) {
    mma::await_phase_or_raise(barrier, parity);
  }
};

}  // namespace keyhole::sm90
