// src/kernels/sm90/backward_dq.cuh
// Where dq goes. Sums in fp32 that all CTAs share: consumers stage dq of a step in shared memory,
// in blocks (query_blocks.cuh), and a warp of its own adds it, so that they do not wait for memory.
// If a query tile has only one step, consumers write dq itself (backward_keys.cuh).
#pragma once

#include "kernels/device/query_blocks.cuh"
#include "kernels/sm90/backward_shared.cuh"
#include "kernels/sm90/backward_turns.cuh"
#include "kernels/sm90/write_rows.cuh"

namespace keyhole::sm90 {

__device__ __forceinline__ DqRows dq_rows(const BackwardParams& p, const device::Work& work) {
  const int64_t head_dim = p.sizes.head_dim, head = work.head_index;
  if (p.dq_order == DqOrder::written) {
    const int64_t first = work.batch * p.dq.batch_stride + work.head * p.dq.head_stride +
                          work.residue.first_q * p.dq.row_stride;
    return {first, p.view.stride * p.dq.row_stride, work.residue.num_q, DqForm::written};
  }
  if (p.dq_rows_per_class != 0) {
    const int64_t first = (head * p.view.classes + work.class_index) * p.dq_rows_per_class;
    return {first * head_dim, 0, work.residue.num_q, DqForm::blocks};
  }
  const int64_t first = head * p.sizes.q_len + work.residue.first_q;
  return {first * head_dim, p.view.stride * head_dim, work.residue.num_q, DqForm::rows};
}

inline constexpr uint32_t kBlockBytes = device::kBlockFloats * sizeof(float);

// The sums are stored in the same blocks: those of a step are contiguous, and leave in one bulk
// addition unless some columns do not exist.
template <class C>
__device__ __forceinline__ void add_blocks(const KeysShared<C>& shared, float* to, int columns) {
  constexpr int kFloat = sizeof(float);
  if (columns == C::head_dim) {
    add_from_shared(to, smem_address(shared.dq), C::tile_q * C::head_dim * kFloat);
  } else {
#pragma unroll 1
    for (int i = 0; i < C::tile_q / 16; ++i) {
      add_from_shared(to + i * 16 * columns, smem_address(shared.dq[i]), 16 * columns * kFloat);
    }
  }
  commit_stores();
  await_reads_of_stores();
}

// Sums in row order: eight rows at a time, from the upper or the lower half of their blocks. Four
// lanes have a row, four columns of every 16 each. Few registers: all is made anew for eight rows.
template <class C>
__device__ __forceinline__ void add_rows_of_step(const BackwardParams& p,
                                                 const KeysShared<C>& shared, const DqRows& place,
                                                 int32_t first) {
#pragma unroll 1
  for (int i = 0; i < C::tile_q / 8; ++i) {
    asm volatile("" ::: "memory");
    const uint32_t lane = device::thread_index() % 32;
    const int32_t row = first + 8 * i + int32_t(lane / 4);
    // A lane of the accumulator holds two columns: those of two neighbours are added.
    uint32_t from = smem_address(shared.dq[i / 2]) + lane % 4 / 2 * kBlockBytes +
                    (lane / 4 * 4 + lane % 2 * 2) * 16 + uint32_t(i % 2 * 8);
    float* to = p.sums.dq + (place.first + row * place.row_step + lane % 4 * 4);
    if (row >= int32_t(place.num_q)) continue;
#pragma unroll 1
    for (int left = p.sizes.head_dim - int(lane % 4 * 4); left > 0; left -= 16) {
      const float2 two = device::load_shared_floats(from);
      const float2 next = device::load_shared_floats(from + 16);
      device::add_to_global(to, {p.sizes.scale * two.x, p.sizes.scale * two.y},
                            {p.sizes.scale * next.x, p.sizes.scale * next.y}, true);
      from += 2 * kBlockBytes;
      asm volatile("" : "+l"(to));  // one pointer, not a base and an index
      to += 16;
    }
  }
}

template <class C>
__device__ __forceinline__ void await_known_turn(KeysShared<C>& shared, uint32_t step) {
  shared.await_or_raise(shared.turn_known[step % kStepPlaces], step / kStepPlaces % 2);
}

// One warp: dq of every step of the CTA.
template <DqOrder kOrder, class C>
__device__ __forceinline__ void take_dq(const BackwardParams& p, KeysShared<C>& shared) {
  constexpr bool kTurns = kOrder == DqOrder::by_turns;
  // Few registers: two numbers tell all stages and parities.
  uint32_t item = 0, step = 0;
  int32_t counted = 0;  // by turns: what the counter of the next step has said
  const auto planned = [&]() -> const PlannedKeys& {
    asm volatile("" : "+r"(item)::"memory");  // made anew for each use
    return shared.planned[item % kSlots];
  };
  const auto planned_step = [&]() -> const PlannedStep& {
    asm volatile("" : "+r"(step)::"memory");
    return shared.steps[step % kStepPlaces];
  };
  for (;; ++item) {
    shared.await_or_raise(shared.is_planned[item % kSlots], item / kSlots % 2);
    if (planned().num_steps < 0) break;
#pragma unroll 1
    for (; step != planned().end_step; ++step) {
      if constexpr (kTurns) {
        await_known_turn(shared, step);
        await_turn(p, planned(), planned_step(), counted);
      }
      shared.await_or_raise(shared.dq_full, step % 2);
      const DqRows& place = planned().dq;
      const int32_t first = planned_step().tile * C::tile_q;
      if (place.form == DqForm::blocks) {
        const int columns = p.sizes.head_dim;
        if (device::thread_index() % 32 == 0) {
          add_blocks<C>(shared, p.sums.dq + place.first + int64_t{first} * columns, columns);
        }
      } else if (place.form == DqForm::rows) {
        add_rows_of_step(p, shared, place, first);
      }
      __syncwarp();
      arrive_as_warp(shared.dq_empty);
      if constexpr (kTurns) {
        counted = 0;
        if (const uint32_t next = step + 1; next != planned().end_step) {
          await_known_turn(shared, next);
          const int32_t tile = shared.steps[next % kStepPlaces].tile;
          counted = device::load_relaxed(turn_counter(p, planned(), tile));
        }
        end_turn(p, planned(), planned_step());
      }
      arrive_as_warp(shared.step_empty[step % kStepPlaces]);
    }
    __syncwarp();
    arrive_as_warp(shared.planned_empty[item % kSlots]);
  }
  await_stores();
}

}  // namespace keyhole::sm90
