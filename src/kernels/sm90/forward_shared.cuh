// src/kernels/sm90/forward_shared.cuh
// The pipeline of the forward kernel: who does what, what they share, and who waits for whom.
//
// A CTA stays on its SM and follows one list after the other. Its first warpgroup is the producer,
// the others are consumers; a ring of stages lies between them for queries, for keys and for
// values.
//
//   planner      1 thread: reads the CTA's work items, makes a PlannedItem of each, some jobs
//   ahead, and
//                starts the copy of its queries by TMA
//   producer     1 thread: walks the job's list and starts the copies of keys and values, keys
//   one
//                tile ahead, because scores come before weights
//   consumers    1 to 3 warpgroups, 64 queries each: scores, weights, out; they never see a list
//
//                     job, q                                     out, lse
//   planner ------------------------------------> consumers --------------> memory
//     |       q_full (TMA counts bytes)            ^      |
//     | job                                        |      |
//     +---------> producer ------------------------+      |
//       is_planned     ^   k, v and masks: k/v_full       |
//                      +-------- k_empty, v_empty --------+   a stage may be overwritten
//   planner <------------------- q_empty, planned_empty ------+
//
// Barrier        ends a phase when                                       who waits
//   is_planned   the planner has written the job                         producer
//   planned_empty    every warp has stored the results of the job            planner
//   q_full       the queries have arrived (or there is no more job)      consumers
//   q_empty      every warp has used the queries for the last time, and  planner
//                its results have left their place
//   k_full       the keys and the number of the bitmap have arrived      consumers
//   k_empty      every warp has its scores                               producer
//   v_full       the values have arrived                                 consumers
//   v_empty      every warp has added them                               producer
#pragma once

#include "kernels/device/work.cuh"
#include "kernels/sm90/forward_config.h"
#include "kernels/sm90/stages.cuh"
#include "kernels/sm90/waits.cuh"

namespace keyhole::sm90 {

using device::ForwardParams;

// A bitmap of a tile in which nobody attends: what the list of a query tile without keys becomes,
// so that nothing else is special about it.
inline constexpr int32_t kEmptyBitmap = -2;

inline constexpr int kProducerWarps = 4;  // the first ones; the others multiply

// Barriers of the CTA by their numbers, one for each consumer warpgroup.
inline constexpr int kPingPongBarrier = 1, kSignBarrier = 4;

// Jobs that are planned, loaded, followed or stored at the same time: more than there are stages of
// queries, so that a job waits for its place in shared memory and not the other way round.
inline constexpr int kPlannedItems = 4;

// Where the result of a job goes.
struct PlannedResult {
  const WorkItem* item;
  int32_t head_index, slot;
  int32_t num_rows;  // of the tile that there are
  bool is_all;       // nothing joins the rows: no other chunk, part or sink
  int64_t query;     // of the first row
  // Where its first row begins in out and in lse, in elements. Not pointers: ptxas would not know
  // that they point to global memory, and take nothing for uniform any more.
  int64_t out_at, lse_at;
  const CUtensorMap* out_map;
};

// One query tile of one head and the tiles it attends to, or a chunk of them.
struct alignas(16) PlannedItem {
  int32_t num_tiles;  // 0: there is no more work
  BoxAt rows;         // the tile's: in q and in out, which have the same classes
  const CUtensorMap* queries;
  int32_t first_k;  // of the residue class
  int32_t kv_head;
  TileRun run;              // where the list begins
  const TileRun* next_run;  // what follows it
  PlannedResult result;
};

template <class C>
struct ForwardShared {
  using Queries = Panels<C::tile_q, ForwardShape<C>::columns>;
  using Keys = Panels<C::tile_k, ForwardShape<C>::columns>;  // and values
  static constexpr uint32_t q_bytes = Queries::bytes * Queries::count;
  static constexpr uint32_t k_bytes = Keys::bytes * Keys::count;

  alignas(1024) unsigned char q[C::q_stages][q_bytes];  // 1024: the swizzle begins anew
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
