// src/kernels/sm90/wide_backward_turns.cuh
// The turns of dq of wide heads (backward_turns.cuh). dq is added from the registers of a
// warpgroup, which must not wait until that is in memory: it would add nothing meanwhile. So a warp
// of its own asks for the turn of a step while the step before is added, and counts that one when
// its additions are done:
//
//   dq      | products | add step 0      | products | add step 1        | ...
//   turns   | turn 1: asked for until 0 is added | 0 into memory, counted | turn 2: asked for ...
//
// Waiting for memory takes a good part of a step. So what the next turn needs is loaded meanwhile.
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

  __device__ __forceinline__ void follow() {
    for (PipelineState<kSlots> slot;; slot.next()) {
      shared_.await(shared_.is_planned[slot.stage], slot.parity);
      const PlannedKeys& planned = shared_.planned[slot.stage];
      if (planned.num_steps < 0) return;
      if (planned.num_steps > 0) follow_steps(planned);
      arrive_as_warp(shared_.planned_empty[slot.stage]);
    }
  }

 private:
  // A step, and where the runs of its query tile's list are, of which each lane loads one.
  struct Step {
    int32_t* counter;
    int64_t first_run;
    int32_t num_runs;
    int32_t first_tile = 0, num_tiles = 0;  // of the lane's run
  };

  static __device__ __forceinline__ int lane() { return int(device::thread_index() % 32); }

  __device__ __forceinline__ void follow_steps(const PlannedKeys& planned) {
    device::ReverseTileWalk walk(planned.work);
    Step step = find(planned, walk.tile());
    load(step);
    int32_t* before = nullptr;  // counter of the step before, which is not counted yet
    int32_t counted = 0;        // what the counter of this step has said
    while (true) {
      const int32_t turn = turn_of_step(planned, step);
      int32_t* const counter = step.counter;
      walk.next();
      const bool is_last = !walk.is_valid();
      if (!is_last) step = find(planned, walk.tile());
      if (lane() == 0) {
        if (counted < turn) {
          // Who waits for the step before shall not wait for the turn of this one.
          await_count(counter, turn, [&] {
            if (before != nullptr && is_over_now(added_before(), parity_before())) count(before);
          });
        }
        arrive(shared_.may_add[step_ % kTurnsInUse]);
      }
      __syncwarp();
      if (!is_last) load(step);
      if (lane() == 0 && before != nullptr) {
        shared_.await(added_before(), parity_before());
        if (!is_last) counted = device::load_relaxed(step.counter);
        count(before);
      } else {
        counted = 0;
      }
      __syncwarp();
      before = counter;
      ++step_;
      if (is_last) break;
    }
    // Others may wait for the last step, however long the next item takes to come.
    if (lane() == 0) {
      shared_.await(added_before(), parity_before());
      count(before);
    }
    __syncwarp();
  }

  __device__ __forceinline__ Step find(const PlannedKeys& planned, int32_t q_tile) const {
    const int64_t list = planned.turns.first_list + q_tile;
    return {turn_counter(p_, planned, q_tile), p_.view.list_begin[list], p_.view.list_count[list]};
  }
  __device__ __forceinline__ void load(Step& step) const {
    if (lane() >= step.num_runs) return;
    const TileRun& run = p_.view.runs[step.first_run + lane()];
    step.first_tile = run.tile;
    step.num_tiles = run.count;
  }
  __device__ __forceinline__ int32_t turn_of_step(const PlannedKeys& planned,
                                                  const Step& step) const {
    int32_t before = tiles_before(planned, step.first_tile, step.num_tiles);
#pragma unroll 1
    for (int32_t i = 32 + lane(); i < step.num_runs; i += 32) {
      const TileRun& run = p_.view.runs[step.first_run + i];
      before += tiles_before(planned, run.tile, run.count);
    }
    return __reduce_add_sync(~0u, before);
  }

  static __device__ __forceinline__ void count(int32_t*& counter) {
    device::add_released(counter, 1);
    counter = nullptr;
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
  uint32_t step_ = 0;  // over all items
};

}  // namespace keyhole::sm90
