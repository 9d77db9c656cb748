// src/kernels/mma/gather_spans_producer.cuh
// The producers of gather_spans (gather_spans.cuh): copies of query rows, weights and places of
// keys into the slots of a stage.
#pragma once

#include "kernels/mma/gather_spans_sums.cuh"
#include "kernels/mma/gather_spans_walk.cuh"

namespace keyhole::mma {

// The query rows that a lane copies for its slots: 16 bytes of every fourth row of a tile.
template <class T, class S>
class SpanRows {
 public:
  __device__ __forceinline__ SpanRows(const SpanParams& p, const SpanWork& work,
                                      const SpanGradient& of)
      : tensor_(of.rows), first_list_(p.lists.first - work.unit * p.view.lists) {
    const uint32_t row = threadIdx.x % 32 / 8, chunk = threadIdx.x % 8;
    const int32_t col = work.first_col + int32_t(chunk) * 8;
    const int32_t batch = work.unit / p.sizes.kv_heads;
    const int32_t kv_head = work.unit - batch * p.sizes.kv_heads;
    const int32_t first_head = kv_head * (p.sizes.heads / p.sizes.kv_heads) + p.lists.first_head;
    rows_ = of.rows.row<T>(batch, first_head, 0) + col;
    is_inside_ = col < of.cols;
    smem_[0] = RowSwizzle<S::cols>::offset(row, chunk);
    smem_[1] = RowSwizzle<S::cols>::offset(row + 4, chunk);
    find(p, 0);
  }
  // list: in the chunk; row_tile: of the list.
  __device__ __forceinline__ void copy(const SpanParams& p, int32_t list, int32_t row_tile,
                                       uint32_t slot) {
    if (p.lists.row_tiles > 1) find(p, row_tile);
    const int64_t first_query = (first_list_ + list) * p.view.rows_per_list;
    const int64_t queries = p.sizes.q_len - first_query;
    const T* const rows = rows_ + first_query * tensor_.row_stride;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool is_inside = query_[i] < queries;
      copy_async_or_zeros(slot + smem_[i % 2] + i / 2 * 8 * 2 * S::cols,
                          rows + (is_inside ? offset_[i] : 0), is_inside);
    }
  }

 private:
  __device__ __forceinline__ void find(const SpanParams& p, int32_t row_tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t row = row_tile * device::kPairRows + int32_t(threadIdx.x % 32) / 8 + 4 * i;
      const int32_t query = int32_t(uint64_t(uint32_t(row)) * p.heads_reciprocal >> 32);
      const int32_t head = row - query * p.lists.heads;
      offset_[i] = head * tensor_.head_stride + query * tensor_.row_stride;
      const bool is_there = is_inside_ && query < p.view.rows_per_list;
      query_[i] = is_there ? query : INT32_MAX;
    }
  }

  const device::DeviceTensor& tensor_;
  const T* rows_;       // of the first head
  int64_t first_list_;  // of the chunk, in the kv head
  int64_t offset_[4];   // from the first row of a list
  int32_t query_[4];    // of the list; INT32_MAX: there is no such row
  uint32_t smem_[2];    // in a slot, of the first row and the second one
  bool is_inside_;
};

// Starts the copies of a slot, except for the keys. list: in the chunk.
template <class T, class S>
__device__ __forceinline__ void fill_slot(const SpanParams& p, const char* weights,
                                          SpanRows<T, S>& rows,
                                          const typename SpanWalk<S>::Slot& what, int32_t list,
                                          uint32_t slot) {
  rows.copy(p, list, what.row_tile - list * p.lists.row_tiles, slot);
  const int32_t lane = int32_t(threadIdx.x % 32);
  const int64_t place = int64_t{what.row_tile} * p.lists.room + what.first;
  weights += place * device::kPairBytes + lane * 16;
  slot += S::weights_at + lane * 16;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (lane + 32 * i < 2 * what.count) {
      copy_async_or_zeros(slot + 512 * i, weights + 512 * i, true);
    }
  }
}

// The slots of a producer warp.
template <class T, class S>
class SpanProducer {
 public:
  __device__ __forceinline__ SpanProducer(const SpanParams& p, const SpanWork& work,
                                          const SpanGradient& of, uint32_t slots, uint32_t sums)
      : walk_(p, work),
        rows_(p, work, of),
        weights_(of.weights),
        slots_(slots),
        sums_(sums),
        first_key_(work.first_span * device::kSpanKeys),
        first_slot_((int32_t(threadIdx.x / 32) - S::consumers) * S::slots_per_producer) {}

  // Fills the next stage; false: there is none.
  __device__ __forceinline__ bool fill(const SpanParams& p, SpanShared<S>& shared) {
    const int32_t lane = int32_t(threadIdx.x % 32);
    if (has_last_) {
#pragma unroll
      for (int i = 0; i < S::slots_per_producer; ++i) finish(last_[i], i, last_key_[i], shared);
      announce(shared, last_stage_);
    }
    has_last_ = walk_.step(p);
    last_stage_ = state_.stage;
    shared.waits.await(shared.free[state_.stage], state_.parity ^ 1);
    state_.next();
    if (first_slot_ == 0 && lane == 0) shared.is_last[last_stage_] = !has_last_;
    if (!has_last_) {
      announce(shared, last_stage_);
      return false;
    }
#pragma unroll
    for (int i = 0; i < S::slots_per_producer; ++i) {
      last_[i] = walk_.slot(first_slot_ + i);
      if (last_[i].count == 0) continue;
      const int32_t list = list_of_row_tile(p, last_[i].row_tile);
      if (lane < last_[i].count) {
        last_key_[i] = __ldg(p.lists.keys + int64_t{list} * p.lists.room + last_[i].first + lane);
      }
      fill_slot<T, S>(p, weights_, rows_, last_[i], list, slot_at(last_stage_, i));
    }
    return true;
  }

  // How often a stage is announced before it is full.
  static constexpr int kArrivals = S::producers * 33;

 private:
  using Slot = typename SpanWalk<S>::Slot;
  // By all lanes when their copies have arrived, and by one for what they have stored.
  static __device__ __forceinline__ void announce(SpanShared<S>& shared, int32_t stage) {
    arrive_when_copied(shared.full[stage]);
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(shared.full[stage]);
  }
  __device__ __forceinline__ uint32_t slot_at(int32_t stage, int i) const {
    return slots_ + uint32_t((stage * S::slots + first_slot_ + i) * S::slot_bytes);
  }
  // The keys have arrived by now.
  __device__ __forceinline__ void finish(const Slot& slot, int i, int32_t global_key,
                                         SpanShared<S>& shared) const {
    const int32_t lane = int32_t(threadIdx.x % 32);
    const bool is_there = lane < slot.count;
    const int32_t key = is_there ? global_key - first_key_ : -1 - lane;
    const bool is_twice = __popc(__match_any_sync(~0u, key)) > 1;
    const bool has_twice = __any_sync(~0u, is_twice);
    if (is_there) {
      store_shared(slot_at(last_stage_, i) + S::keys_at + lane * 4, sums_at<S>(sums_, key));
    }
    if (lane == 0) {
      shared.keys[last_stage_][first_slot_ + i] =
          SlotKeys::pack(slot.count_of_first, slot.count - slot.count_of_first, has_twice);
    }
  }

  SpanWalk<S> walk_;
  SpanRows<T, S> rows_;
  const char* weights_;
  uint32_t slots_, sums_;
  int32_t first_key_, first_slot_;
  PipelineState<S::stages> state_;
  // The stage that was filled last: its keys are still on their way.
  bool has_last_ = false;
  int32_t last_stage_ = 0;
  Slot last_[S::slots_per_producer];
  int32_t last_key_[S::slots_per_producer] = {};
};

}  // namespace keyhole::mma
