// src/kernels/sm90/wide_backward_turns.cuh
// The turns of dq of wide heads (backward_turns.cuh). dq is added from the registers of a
// warpgroup, which must not wait until that is in memory: it would add nothing meanwhile. So a warp
// of its own asks for the turn of a step while the step before is added, and counts that one when
// its additions are done:
//
//   dq      | products | add step 0      | products | add step 1        | ...
//   turns   | turn 1: asked for until 0 is added | 0 into memory, counted | turn 2: asked for ...
#pragma once

#include "kernels/device/work.cuh"
#include "kernels/sm90/backward_turns.cuh"
#include "kernels/sm90/wide_backward_shared.cuh"

namespace keyhole::sm90 {

template <class C>
class WideTurns {
 public:
  __device__ WideTurns(const BackwardParams& params, WideShared<C>& shared)
      : p_(params), shared_(shared) {}

  __device__ __forceinline__ void follow(int lane) {
    for (PipelineState<kSlots> slot;; slot.next()) {
      shared_.await(shared_.is_planned[slot.stage], slot.parity);
      const PlannedKeys& planned = shared_.planned[slot.stage];
      if (planned.num_steps < 0) return;
      for (device::ReverseTileWalk walk(planned.work); walk.is_valid(); walk.next(), ++step_) {
        const int32_t turn = turn_of(p_.view, planned, walk.tile());
        if (lane == 0) take_turn(turn_counter(p_, planned, walk.tile()), turn);
        __syncwarp();
      }
      // Others may wait for the last step, however long the next item takes to come.
      if (lane == 0 && uncounted_ != nullptr) {
        shared_.await(added_before(), parity_before());
        count();
      }
      __syncwarp();
      arrive_as_warp(shared_.planned_empty[slot.stage]);
    }
  }

 private:
  // By one thread. Who waits for the step before shall not wait for the turn of this one.
  __device__ __forceinline__ void take_turn(int32_t* counter, int32_t turn) {
    await_count(counter, turn, [&] {
      if (uncounted_ != nullptr && is_over_now(added_before(), parity_before())) count();
    });
    arrive(shared_.may_add[step_ % kTurnsInUse]);
    if (uncounted_ != nullptr) {
      shared_.await(added_before(), parity_before());
      count();
    }
    uncounted_ = counter;
  }
  __device__ __forceinline__ void count() {
    device::add_released(uncounted_, 1);
    uncounted_ = nullptr;
  }
  // Of the step before step_.
  __device__ __forceinline__ uint64_t& added_before() const {
    return shared_.is_added[(step_ - 1) % kTurnsInUse];
  }
  __device__ __forceinline__ uint32_t parity_before() const {
    return (step_ - 1) / kTurnsInUse % 2;
  }

  const BackwardParams& p_;
  WideShared<C>& shared_;
  uint32_t step_ = 0;             // over all items
  int32_t* uncounted_ = nullptr;  // the counter of the step before
};

}  // namespace keyhole::sm90
