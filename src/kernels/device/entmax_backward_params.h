// src/kernels/device/entmax_backward_params.h
// What the launches of the backward pass of entmax and top_k share, on every GPU backend: plain
// structs, by value; every pointer is a device pointer.
//
//   tiles    (entmax_backward_tiles.cu)   long rows, over tiles, where a query tile has many
//   count    (entmax_backward_count.cu)   how many rows list each key; a queue of the rows without
//            a usable support
//   collect  (entmax_backward_collect.cu) lists of the queued rows, over the plan
//   room     (entmax_backward_count.cu)   where the entries of each key go
//   rows     (entmax_backward_rows.cu)    by the support of a row: delta, dq, and an entry for each
//            of its keys
//   long     (entmax_backward_long.cu)    the same by the collected list of a row
//   alone    (entmax_backward_alone.cu)   rows that still have no list, over the plan
//   keys     (entmax_backward_keys.cu)    by the entries of a key: dk and dv
//
// A row is (batch * heads + head) * q_len + query. A unit is batch * kv_heads + kv_head: all rows
// that share its keys are neighbours.
#pragma once

#include "base/entmax.h"
#include "kernels/device/exact_backward.cuh"
#include "kernels/device/params.h"

namespace keyhole::device {

// What a row gives to one of its keys.
struct alignas(16) KeyEntry {
  uint32_t place;  // which row of the unit: EntryPlaces; ascending as the rows are
  float weight;    // to dv
  float dscore;    // to dk
  uint32_t order;  // of a busy key: the index of the entry that comes here in ascending order
};

// The places of entries: head in its group, query, and place in the support, in one number.
struct EntryPlaces {
  int32_t query_bits = 0, bits = 0;  // bits: of the whole number

  __host__ __device__ uint32_t place(int32_t head_in_group, int64_t query, int32_t slot) const {
    return ((uint32_t(head_in_group) << query_bits | uint32_t(query)) << kSlotBits) |
           uint32_t(slot);
  }
  __host__ __device__ int32_t head_in_group(uint32_t place) const {
    return int32_t(place >> kSlotBits >> query_bits);
  }
  __host__ __device__ int64_t query(uint32_t place) const {
    return (place >> kSlotBits) & ((1u << query_bits) - 1);
  }
  static constexpr int32_t kSlotBits = 6;
};
static_assert(kSupportKeys == 1 << EntryPlaces::kSlotBits);

// A key with more entries than a warp takes is busy. Its entries are dealt in chunks, each to a
// CTA; sums of several chunks are combined in order.
inline constexpr uint32_t kMostOfWarp = 128;
inline constexpr uint32_t kBusyChunk = 1024;
struct alignas(16) BusyItem {
  int32_t unit, key;
  int32_t chunk;
  int32_t
      slot;  // of the sums of chunk 0, and so on; -1: there is one chunk, which writes dk and dv
};

// Cleared before the launches.
struct EntmaxCounters {
  unsigned long long num_queued;  // rows
  int32_t any_alone;
  uint32_t num_busy;  // items
  uint32_t num_slots;
  int32_t any_tiled;
  int32_t found_nonfinite;  // among what tiled rows gave
};

struct KeyEntries {
  KeyEntry* entries = nullptr;  // [units][rows of a unit * kSupportKeys]
  uint32_t* count = nullptr;    // [units][k_len]; cleared before the launches
  uint32_t* end = nullptr;      // [units][k_len]  where the next entry goes; after `rows`, the end
  uint32_t* taken = nullptr;    // [units]  entries with a place; cleared before the launches
  BusyItem* busy = nullptr;     // [most_busy]
  float* busy_sums = nullptr;   // [slots][v_head_dim, then head_dim]
  EntryPlaces places;
  bool is_ordered = false;  // entries are added in ascending order of their rows
};

// A row without a usable support. begin, count: of its pairs in those of its unit, if the unit has
// room for them.
struct alignas(16) QueuedRow {
  int64_t row;
  uint32_t begin, count;
};
// A key of such a row that has weight or slope.
struct alignas(16) LongPair {
  int32_t key;
  float product, weight, slope;
};

// Lists that this pass makes itself. A unit has room for the lists of all its queued rows, or its
// queued rows stay alone: room for some of them would depend on who comes first.
struct LongRows {
  QueuedRow* queue = nullptr;  // [rows]  as many as counters->num_queued, in any order
  LongPair* pairs = nullptr;   // [units][pairs_of_unit]
  float* dvalue = nullptr;     // [units][pairs_of_unit]  dout . v, and then the score's gradient
  int64_t pairs_of_unit = 0;
  // Cleared before the launches.
  unsigned long long* listed = nullptr;  // [units]  entries of the rows that have a support
  unsigned long long* taken = nullptr;   // [units]  pairs of queued rows; once there is no room for
                                         // them the sum need not be complete
  uint32_t* count = nullptr;             // [units][k_len]  lists of queued rows that name a key
};

// Long rows whose tiles a backend multiplies: of query tiles in which many rows are long.
struct TiledRows {
  // [rows]  1 - (alpha - 1) lambda; -inf: the row is not tiled. Null: no row of the call is.
  float* base = nullptr;
  // [batch * heads][classes][words_per_class]  query tiles with tiled rows, by bit; cleared before
  // the launches.
  uint32_t* chosen = nullptr;
  int32_t classes = 1, words_per_class = 0;
  float unit = 0;       // x = unit * product + base
  float power = 0;      // r: the weight is x^r
  int32_t whole = 0;    // as in EntmaxPower
  float* dq = nullptr;  // sums in blocks (query_blocks.cuh)
  int64_t dq_rows_per_class = 0;

  __host__ __device__ int64_t num_words(int64_t num_heads) const {
    return num_heads * classes * words_per_class;
  }
  __device__ uint32_t* chosen_of(int32_t head_index, int32_t class_index) const {
    return chosen + (int64_t{head_index} * classes + class_index) * words_per_class;
  }
  __device__ bool has_row(int64_t row) const { return base[row] > -INFINITY; }
};

// The last key of a row that top_k takes (last_rank.cuh). A list may name a key several times, and
// all mentions have the same rank: if top_k takes some of them, each has a share of their weight.
struct LastRank {
  uint64_t rank = ~uint64_t{0};  // all keys are taken
  float share = 1;               // of those with this rank
};

struct RowAddress {
  int32_t batch, head, unit;
  int64_t query;
};

struct EntmaxBackwardParams {
  Sizes sizes;
  DeviceTensor dout, q, k, v, dq, dk, dv;
  DeviceVector lambda;          // f32
  DeviceVector dlse;            // f32; data null: none
  DeviceTensor support;         // int32 rows of kSupportKeys; data null: every row is queued
  const float* sink = nullptr;  // [heads], or null
  int64_t sink_stride = 1;
  EntmaxPower power;
  int64_t top_k = 0;

  float* delta = nullptr;         // [rows]
  uint8_t* is_alone = nullptr;    // [rows]  the row has no list
  LastRank* last_rank = nullptr;  // [rows]  of rows alone; null: there is no top_k
  EntmaxCounters* counters = nullptr;
  KeyEntries keys;
  LongRows long_rows;
  TiledRows tiled;
  // Sums over the rows without a list, alone or tiled, if there are any.
  float* dk_unlisted = nullptr;  // [units][k_len][head_dim]
  float* dv_unlisted = nullptr;  // [units][k_len][v_head_dim]

  __host__ __device__ int32_t group() const { return sizes.heads / sizes.kv_heads; }
  __host__ __device__ int64_t num_units() const { return int64_t{sizes.batch} * sizes.kv_heads; }
  __host__ __device__ int64_t num_rows() const { return sizes.num_heads() * sizes.q_len; }
  __host__ __device__ int64_t entries_of_unit() const {
    return group() * sizes.q_len * kSupportKeys;
  }
  __device__ RowAddress address_of(int64_t row) const {
    const int32_t head_index = int32_t(row / sizes.q_len);
    const int32_t batch = head_index / sizes.heads, head = head_index - batch * sizes.heads;
    return {batch, head, batch * sizes.kv_heads + sizes.kv_head_of(head),
            row - head_index * sizes.q_len};
  }
  // Whether the results of tiled rows stand. A tile multiplies what its rows do not attend to, and
  // 0 x NaN is NaN: if anything is not finite, all tiled rows are queued like other long ones.
  __device__ bool keeps_tiles() const {
    return tiled.base != nullptr && counters->any_tiled != 0 && counters->found_nonfinite == 0;
  }
  __device__ bool has_unlisted() const { return counters->any_alone != 0 || keeps_tiles(); }
  // Whether the queued rows of a unit get lists. Sums only grow: what is false stays false, and
  // after the launch that collects the lists the answer is the same on every run.
  __device__ bool has_room(int32_t unit) const {
    const unsigned long long taken = __ldcg(long_rows.taken + unit);
    return taken <= uint64_t(long_rows.pairs_of_unit) &&
           taken + long_rows.listed[unit] <= uint64_t(entries_of_unit());
  }
};

}  // namespace keyhole::device
