// src/kernels/mma/gather_spans.cuh
// The second half of a backward pass over spans of keys (device/span_lists.h): dk and dv. A CTA has
// 64 columns of the gradients of some spans in shared memory, and follows the lists in order:
//
//   a slot    the columns of 16 query rows (of q or dout), and some keys of the spans that are
//             paired with them: their places, and the weights of the 16 rows
//   a stage   some slots; producer warps fill them by asynchronous copies (barriers.cuh)
//   a step    16 keys x 16 columns of sums += weights . rows, by one of the other warps
//
// A warp has 16 columns of one span to itself, so every sum has a fixed order.
#pragma once

#include "kernels/device/span_lists.h"
#include "kernels/mma/gather_rows.cuh"
#include "kernels/mma/ptx.cuh"
#include "kernels/mma/row_swizzle.cuh"
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
  uint64_t heads_per_kv_reciprocal;  // 2^32 / heads_per_kv, rounded up
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

// The address of a key's sums, if `first` is that of the first key, a multiple of a row's bytes.
// What is in the row is added by exclusive or: neighbouring slices of odd keys change places. So
// two keys that a quarter of a warp reads together are in the same banks half as often.
template <class S>
__device__ __forceinline__ uint32_t sums_at(uint32_t first, int32_t key) {
  static_assert(S::sums_row_bytes == 256);
  return first + uint32_t(key) * S::sums_row_bytes + uint32_t(key & 1) * 64;
}

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
    rows_ = of.rows.row<T>(batch, kv_head * (p.sizes.heads / p.sizes.kv_heads), 0) + col;
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
      const int32_t query = int32_t(uint64_t(uint32_t(row)) * p.heads_per_kv_reciprocal >> 32);
      const int32_t head = row - query * (p.sizes.heads / p.sizes.kv_heads);
      offset_[i] = head * tensor_.head_stride + query * tensor_.row_stride;
      const bool is_there = is_inside_ && query < p.view.rows_per_list;
      query_[i] = is_there ? query : INT32_MAX;
    }
  }

  const device::DeviceTensor& tensor_;
  const T* rows_;       // of the kv head
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

// 16 bytes, if there are any: otherwise anything.
__device__ __forceinline__ uint4 load_shared_vector_if(uint32_t smem, bool is_there) {
  uint4 words;
  asm volatile(
      "{\n"
      ".reg .pred there;\n"
      "setp.ne.s32 there, %5, 0;\n"
      "@there ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n"
      "}"
      : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
      : "r"(smem), "r"(int(is_there))
      : "memory");
  return words;
}

// What a warp needs for 16 keys of a slot. Of keys that are not there it is what lies behind those
// of the slot; their sums are not stored.
template <class S>
struct SpanOperands {
  uint32_t weights[4], rows[4], at[2];

  // first: of the keys, in the slot; rows_at: of this warp's columns.
  __device__ __forceinline__ void load(uint32_t slot, int32_t first, uint32_t rows_at) {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t key = lane / 4 * 4 + uint32_t(first) * 4 + slot;
    const uint32_t pair = lane * 8 + uint32_t(first) * 32 + slot;
    const uint2 low = load_shared_pair(pair + S::weights_at);
    const uint2 high = load_shared_pair(pair + S::weights_at + 256);
    weights[0] = low.x, weights[2] = low.y, weights[1] = high.x, weights[3] = high.y;
    load_matrices_transposed(rows, slot + rows_at);
    at[0] = load_shared(key + S::keys_at);
    at[1] = load_shared(key + S::keys_at + 32);
  }
};

// Of 16 keys and columns 2 * (lane % 4) and the next one of two eights of columns.
struct SpanProducts {
  float low[4], high[4];

  __device__ __forceinline__ uint4 added_to(const uint4& sums, int half) const {
    return {__float_as_uint(__uint_as_float(sums.x) + low[2 * half]),
            __float_as_uint(__uint_as_float(sums.y) + low[2 * half + 1]),
            __float_as_uint(__uint_as_float(sums.z) + high[2 * half]),
            __float_as_uint(__uint_as_float(sums.w) + high[2 * half + 1])};
  }
};
template <class T, class S>
__device__ __forceinline__ SpanProducts multiply_pairs(const SpanOperands<S>& x) {
  SpanProducts products;
  Element<T>::multiply(products.low, x.weights, x.rows[0], x.rows[1]);
  Element<T>::multiply(products.high, x.weights, x.rows[2], x.rows[3]);
  return products;
}

// Adds the products of up to 16 keys. sums: where this lane's columns are in a row.
__device__ __forceinline__ void add_products(const SpanProducts& products, const uint32_t (&at)[2],
                                             uint32_t sums, int32_t count) {
  const int32_t key = int32_t(threadIdx.x % 32) / 4;
  uint4 four[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    four[half] = load_shared_vector_if(sums ^ at[half], key + 8 * half < count);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (key + 8 * half < count) {
      store_shared_vector(sums ^ at[half], products.added_to(four[half], half));
    }
  }
  __syncwarp();
}
// The same where a key may be listed twice: one key after the other.
__device__ __forceinline__ void add_products_singly(const SpanProducts& products,
                                                    const uint32_t (&at)[2], uint32_t sums,
                                                    int32_t count) {
  const int32_t mine = int32_t(threadIdx.x % 32) / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll 1
    for (int32_t key = 0; key < min(count - 8 * half, 8); ++key) {
      if (mine == key) {
        const uint32_t to = sums ^ at[half];
        store_shared_vector(to, products.added_to(load_shared_vector(to), half));
      }
      __syncwarp();
    }
  }
}

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

// A slot whose keys are unusual.
template <class T, class S>
__device__ __noinline__ void add_slot(uint32_t slot, SlotKeys keys, int32_t span, uint32_t rows_at,
                                      uint32_t sums) {
  const int32_t count = keys.count(span);
#pragma unroll 1
  for (int32_t first = 0; first < count; first += 16) {
    SpanOperands<S> operands;
    operands.load(slot, keys.before(span) + first, rows_at);
    const SpanProducts products = multiply_pairs<T>(operands);
    if (keys.has_twice()) {
      add_products_singly(products, operands.at, sums, count - first);
    } else {
      add_products(products, operands.at, sums, count - first);
    }
  }
}

// The slots of a stage, one after the other. While the sums of a slot are read, the products of the
// next one are computed, and the operands of the one after that are read.
template <class T, class S>
__device__ __forceinline__ void add_stage(uint32_t slots, const uint32_t (&packed)[S::slots],
                                          int32_t span, uint32_t rows_at, uint32_t sums) {
  SpanOperands<S> operands;
  operands.load(slots, SlotKeys{packed[0]}.before(span), rows_at);
  SpanProducts next = multiply_pairs<T>(operands);
  uint32_t next_at[2] = {operands.at[0], operands.at[1]};
  operands.load(slots + S::slot_bytes, SlotKeys{packed[1]}.before(span), rows_at);
#pragma unroll
  for (int i = 0; i < S::slots; ++i) {
    const SpanProducts now = next;
    const uint32_t at[2] = {next_at[0], next_at[1]};
    const SlotKeys keys{packed[i]};
    if (i + 1 < S::slots) {
      next = multiply_pairs<T>(operands);
      next_at[0] = operands.at[0], next_at[1] = operands.at[1];
    }
    if (i + 2 < S::slots) {
      operands.load(slots + (i + 2) * S::slot_bytes, SlotKeys{packed[i + 2]}.before(span), rows_at);
    }
    if (keys.is_unusual()) {
      add_slot<T, S>(slots + i * S::slot_bytes, keys, span, rows_at, sums);
    } else {
      add_products(now, at, sums, keys.count(span));
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

template <class T, class S>
__global__ void __launch_bounds__(S::threads, 1)
    gather_spans(const __grid_constant__ SpanParams p) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ SpanShared<S> shared;
  const int32_t warp = int32_t(threadIdx.x / 32), lane = int32_t(threadIdx.x % 32);
  const SpanWork work = my_span_work<S>(p);
  const SpanGradient& of = work.is_dv ? p.dv : p.dk;
  const uint32_t sums =
      (smem_address(memory) + S::sums_row_bytes - 1) & ~uint32_t{S::sums_row_bytes - 1};
  const uint32_t slots = sums + S::sums_bytes;
  for (int i = int(threadIdx.x); i < S::sums_bytes / 16; i += S::threads) {
    store_shared_vector(sums + i * 16, {});
  }
  if (threadIdx.x == 0) {
    shared.waits = {};
    for (int i = 0; i < S::stages; ++i) {
      init_barrier(shared.full[i], SpanProducer<T, S>::kArrivals);
      init_barrier(shared.free[i], S::consumers);
    }
  }
  __syncthreads();

  if (warp >= S::consumers) {
    SpanProducer<T, S> producer(p, work, of, slots, sums);
#pragma unroll 1
    while (producer.fill(p, shared)) {
    }
    await_copies<0>();
  } else {
    const int32_t slice = warp % S::slices, span = warp / S::slices;
    const uint32_t rows_at =
        RowSwizzle<S::cols>::offset(uint32_t(lane) % 16, uint32_t(lane) / 16 + 2 * slice);
    const uint32_t my_sums = uint32_t(slice * 64 + lane % 4 * 16);
#pragma unroll 1
    for (PipelineState<S::stages> state;; state.next()) {
      shared.waits.await(shared.full[state.stage], state.parity);
      if (shared.is_last[state.stage]) break;
      uint32_t packed[S::slots];
#pragma unroll
      for (int i = 0; i < S::slots; i += 4) {
        const uint4 four = load_shared_vector(smem_address(&shared.keys[state.stage][i]));
        packed[i] = four.x, packed[i + 1] = four.y, packed[i + 2] = four.z, packed[i + 3] = four.w;
      }
      add_stage<T, S>(slots + state.stage * S::slots * S::slot_bytes, packed, span, rows_at,
                      my_sums);
      __syncwarp();
      if (lane == 0) arrive(shared.free[state.stage]);
    }
  }
  __syncthreads();
  shared.waits.end();

  // Adds the sums to those in memory, which no other CTA has.
  const int64_t first_key = int64_t{work.first_span} * device::kSpanKeys;
  const int32_t keys =
      int32_t(min(p.sizes.k_len - first_key, int64_t{S::spans * device::kSpanKeys}));
  float* const to = of.sums + (work.unit * p.sizes.k_len + first_key) * of.cols;
  for (int32_t i = int32_t(threadIdx.x); i < keys * S::slices * 4; i += S::threads) {
    const int32_t key = i / (S::slices * 4), quad = i % (S::slices * 4);
    const uint4 four = load_shared_vector(sums_at<S>(sums, key) ^ uint32_t(quad * 16));
    const int32_t col = work.first_col + quad / 4 * 16 + quad % 4 * 2;
    float2* const low = reinterpret_cast<float2*>(to + int64_t{key} * of.cols + col);
    if (col < of.cols) *low = {low->x + __uint_as_float(four.x), low->y + __uint_as_float(four.y)};
    float2* const high = low + 4;
    if (col + 8 < of.cols) {
      *high = {high->x + __uint_as_float(four.z), high->y + __uint_as_float(four.w)};
    }
  }
}

}  // namespace keyhole::mma
