// src/kernels/mma/gather_spans_walk.cuh
// What a CTA of gather_spans (gather_spans.cuh) has to do: its spans, its columns, its lists, and
// which keys of them the slots of a stage take.
#pragma once

#include "kernels/device/span_lists.h"
#include "kernels/mma/gather_rows.cuh"
#include "kernels/mma/waits.cuh"

namespace keyhole::mma {

using device::BackwardParams;
using device::SpanLists;

// kSpans: of a CTA; kPlaces: keys of a slot.
template <int kSpans, int kPlaces, int kSlots>
struct SpanShape {
  static constexpr int spans = kSpans, places = kPlaces, slots = kSlots, stages = 3;
  static constexpr int cols = 64, slices = cols / 16;
  static constexpr int consumers = slices * kSpans, producers = 4;  // warps
  static constexpr int slots_per_producer = slots / producers;
  static constexpr int threads = 32 * (consumers + producers);
  static constexpr int sums_row_bytes = 4 * cols;
  static constexpr int sums_bytes = kSpans * device::kSpanKeys * sums_row_bytes;
  static constexpr int weights_at = device::kPairRows * 2 * cols;
  static constexpr int keys_at = weights_at + places * int(device::kPairBytes);
  static constexpr int slot_bytes = keys_at + places * 4;
  static_assert(places <= 32 && slot_bytes % 32 == 0);
  // Behind the last slot: operands are read 16 keys at a time, wherever the keys of a slot end.
  static constexpr int overhang_bytes = 16 * int(device::kPairBytes);
  static constexpr int shared_bytes =
      sums_row_bytes + sums_bytes + stages * slots * slot_bytes + overhang_bytes;
};

// One gradient: dk from q, or dv from dout.
struct SpanGradient {
  device::DeviceTensor rows;
  const char* weights;
  float* sums;  // [batch * kv_heads][k_len][cols]
  int32_t cols, col_groups;
};
struct SpanParams {
  device::Sizes sizes;
  GatherView view;
  SpanLists lists;
  SpanGradient dv, dk;
  uint64_t heads_reciprocal;  // 2^32 / lists.heads, rounded up
};

// The work of a CTA: some spans of a kv head, columns of one gradient, and the row tiles of the
// lists of the chunk, which are of that kv head.
struct SpanWork {
  int32_t unit, first_span, first_col;
  bool is_dv;
  int32_t first, end;  // row tiles, counted in the chunk
};
template <class S>
__device__ __forceinline__ SpanWork my_span_work(const SpanParams& p) {
  SpanWork work;
  const uint32_t groups = uint32_t(p.dv.col_groups + p.dk.col_groups);
  const uint32_t index = blockIdx.x / groups;
  const int32_t group = int32_t(blockIdx.x - index * groups);
  work.is_dv = group < p.dv.col_groups;
  work.first_col = S::cols * (work.is_dv ? group : group - p.dv.col_groups);
  const uint32_t parts = uint32_t(p.lists.spans + S::spans - 1) / S::spans;
  const uint32_t unit = index / parts;
  work.first_span = int32_t(index - unit * parts) * S::spans;
  work.unit = int32_t(p.lists.first / p.view.lists) + int32_t(unit);
  const int64_t first = work.unit * p.view.lists - p.lists.first;
  work.first = int32_t(max(first, int64_t{0})) * p.lists.row_tiles;
  work.end = int32_t(min(first + p.view.lists, p.lists.count)) * p.lists.row_tiles;
  return work;
}

// Where the list of a row tile is in the chunk.
__device__ __forceinline__ int32_t list_of_row_tile(const SpanParams& p, int32_t row_tile) {
  return p.lists.row_tiles == 1 ? row_tile
                                : int32_t(uint32_t(row_tile) / uint32_t(p.lists.row_tiles));
}

// Which keys the slots of a stage take: lane l has those of slot l. All producers see the same.
template <class S>
class SpanWalk {
 public:
  struct Slot {
    int32_t row_tile;
    int32_t first, count;    // places of the list
    int32_t count_of_first;  // of the CTA's first span
  };
  __device__ __forceinline__ SpanWalk(const SpanParams& p, const SpanWork& work)
      : begin_(p.lists.begin + work.first_span * p.lists.chunk),
        second_(begin_ + p.lists.chunk),
        past_(begin_ + min(S::spans, p.lists.spans - work.first_span) * p.lists.chunk),
        next_(work.first),
        end_(work.end) {
    look_ahead(p);
  }
  // Steps to the next stage that has keys; false: there is none.
  __device__ __forceinline__ bool step(const SpanParams& p) {
    if (left_ > S::places) {  // another stage of the same lists
      left_ -= S::places;
      now_.first += S::places;
      return true;
    }
    while (next_ < end_) {
      row_tile_ = next_;
      now_ = ahead_;
      next_ += S::slots;
      look_ahead(p);
      left_ = __reduce_max_sync(~0u, now_.end - now_.first);
      if (left_ > 0) return true;
    }
    left_ = 0;
    return false;
  }
  __device__ __forceinline__ Slot slot(int32_t which) const {
    const int32_t first = __shfl_sync(~0u, now_.first, which);
    const int32_t second = __shfl_sync(~0u, now_.second, which);
    const int32_t end = __shfl_sync(~0u, now_.end, which);
    const int32_t count = max(0, min(end - first, S::places));
    return {row_tile_ + which, first, count, max(0, min(second - first, count))};
  }

 private:
  struct Places {
    int32_t first = 0, second = 0, end = 0;  // second: of the second span
  };
  __device__ __forceinline__ void look_ahead(const SpanParams& p) {
    const int32_t row_tile = next_ + int32_t(threadIdx.x % 32);
    ahead_ = {};
    if (threadIdx.x % 32 < S::slots && row_tile < end_) {
      const int32_t list = list_of_row_tile(p, row_tile);
      ahead_ = {__ldg(begin_ + list), __ldg(second_ + list), __ldg(past_ + list)};
    }
  }

  // Of all lists, where the keys begin: of the first span, the second one, and behind the last one.
  const int32_t *begin_, *second_, *past_;
  int32_t next_, end_, row_tile_ = 0, left_ = 0;
  Places now_, ahead_;
};

// How many keys of a slot are of the CTA's first span, and how many of its second.
struct SlotKeys {
  uint32_t packed;

  static __device__ __forceinline__ uint32_t pack(int32_t first, int32_t second, bool has_twice) {
    const bool is_unusual = has_twice || first > 16 || second > 16;
    return uint32_t(first) | uint32_t(second) << 8 | uint32_t(is_unusual) << 16 |
           uint32_t(has_twice) << 17;
  }
  __device__ __forceinline__ int32_t before(int32_t span) const {
    return span == 0 ? 0 : int32_t(packed & 0xff);
  }
  __device__ __forceinline__ int32_t count(int32_t span) const {
    return int32_t(packed >> (8 * span) & 0xff);
  }
  // One product is not enough for a span, or a key is listed twice.
  __device__ __forceinline__ bool is_unusual() const { return packed >> 16 != 0; }
  __device__ __forceinline__ bool has_twice() const { return packed >> 17 != 0; }
};

template <class S>
struct SpanShared {
  uint64_t full[S::stages], free[S::stages];
  alignas(16) uint32_t keys[S::stages][S::slots];  // SlotKeys
  bool is_last[S::stages];                         // there is no such stage, and none after it
  Waits waits;
};

}  // namespace keyhole::mma
