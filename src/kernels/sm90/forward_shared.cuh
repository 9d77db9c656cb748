// src/kernels/sm90/forward_shared.cuh
// The pipeline of the forward kernel: the roles, what they share, and who waits for whom.
//
// CTAs are persistent and process one list after another. The first warpgroup is the producer, the
// others are consumers. Between them are rings of stages for queries, keys and values.
//
//   planner      1 thread: reads the CTA's work items, makes a PlannedItem of each some items
//                ahead, and starts the TMA copy of its queries
//   producer     1 thread: walks the item's list and starts the copies of keys and values; keys
//                one tile ahead, because scores come before weights
//   consumers    1 to 3 warpgroups, 64 queries each: scores, weights, out; they never see a list
//
//                     item, q                                    out, lse
//   planner ------------------------------------> consumers --------------> memory
//     |       q_full (TMA counts bytes)            ^      |
//     | item                                       |      |
//     +---------> producer ------------------------+      |
//       is_planned     ^   k, v and masks: k/v_full       |
//                      +-------- k_empty, v_empty --------+   a stage may be overwritten
//   planner <------------------- q_empty, planned_empty --+
//
// Barrier           completes a phase when                                who waits
//   is_planned      the planner has written the item                      producer
//   planned_empty   every warp has stored the results of the item         planner
//   q_full          the queries have arrived (or there is no more work)   consumers
//   q_empty         every warp has used the queries for the last time,    planner
//                   and its results have left the staging buffer
//   k_full          the keys and the number of the bitmap have arrived    consumers
//   k_empty         every warp has its scores                             producer
//   v_full          the values have arrived                               consumers
//   v_empty         every warp has multiplied them                        producer
#pragma once

#include "kernels/device/work.cuh"
#include "kernels/sm90/forward_config.h"
#include "kernels/sm90/stages.cuh"

namespace keyhole::sm90 {

using device::ForwardParams;

// The bitmap of a tile in which no pair attends. A query tile without keys gets a list of one such
// tile, so that it needs no special case.
inline constexpr int32_t kEmptyBitmap = -2;

inline constexpr int kProducerWarps = 4;  // the first ones; the others are consumers

// Numbers of CTA barriers: the first of each set; one for each consumer warpgroup.
inline constexpr int kPingPongBarrier = 1, kSignBarrier = 4;

// Work items in flight: planned, loaded, computed or stored. More than there are stages of queries,
// so that shared memory for queries is the limit, not this ring.
inline constexpr int kPlannedItems = 4;

// Where the result of a work item goes.
struct PlannedResult {
  const WorkItem* item;
  int32_t head_index, slot;
  int32_t num_rows;  // rows of the tile that exist
  bool is_all;       // the rows are complete: no other chunk, part or sink
  int64_t query;     // of the first row
  // The first row's offset in out and in lse, in elements. Not pointers: ptxas would not know that
  // they point to global memory, and would no longer treat values as uniform.
  int64_t out_at, lse_at;
  const CUtensorMap* out_map;
};

// A work item with its addresses worked out: one query tile of one head and the key tiles it
// attends to, or a chunk of them.
struct alignas(16) PlannedItem {
  int32_t num_tiles;  // 0: there is no more work
  BoxAt rows;         // of the query tile, in q and in out, which have the same classes
  const CUtensorMap* queries;
  int32_t first_k;  // of the residue class
  int32_t kv_head;
  TileRun run;              // the first run of the list
  const TileRun* next_run;  // the runs after it
  PlannedResult result;
};

template <class C>
struct ForwardShared {
  using Queries = Panels<C::tile_q, ForwardShape<C>::columns>;
  using Keys = Panels<C::tile_k, ForwardShape<C>::columns>;  // and values
  static constexpr uint32_t q_bytes = Queries::bytes * Queries::count;
  static constexpr uint32_t k_bytes = Keys::bytes * Keys::count;

  alignas(1024) unsigned char q[C::q_stages][q_bytes];  // 1024: the period of the swizzle
  unsigned char k[C::k_stages][k_bytes], v[C::v_stages][k_bytes];
  uint64_t is_planned[kPlannedItems], planned_empty[kPlannedItems];
  uint64_t q_full[C::q_stages], q_empty[C::q_stages];
  uint64_t k_full[C::k_stages], k_empty[C::k_stages];
  uint64_t v_full[C::v_stages], v_empty[C::v_stages];
  PlannedItem planned[kPlannedItems];
  int32_t bitmap[C::k_stages];
  Waits waits;

  __device__ void init() {
    constexpr int kWarps = 4 * ForwardShape<C>::consumers;
    for (int i = 0; i < kPlannedItems; ++i) {
      init_barrier(is_planned[i], 1);
      init_barrier(planned_empty[i], kWarps);
    }
    for (int i = 0; i < C::q_stages; ++i) {
      init_barrier(q_full[i], 1);
      init_barrier(q_empty[i], kWarps);
    }
    for (int i = 0; i < C::k_stages; ++i) {
      init_barrier(k_full[i], 1);
      init_barrier(k_empty[i], kWarps);
    }
    for (int i = 0; i < C::v_stages; ++i) {
      init_barrier(v_full[i], 1);
      init_barrier(v_empty[i], kWarps);
    }
    waits.gave_up = 0;
    publish_barriers();
  }

  __device__ __forceinline__ void await(uint64_t& barrier, uint32_t parity,
                                        bool is_over_already = false) {
    waits.await(barrier, parity, is_over_already);
  }
};

}  // namespace keyhole::sm90
