// src/kernels/sm90/wide_backward_shared.cuh
// The pipeline of the backward kernel for wide heads: the roles, what they share, and who waits for
// whom.
//
// CTAs are persistent. Each processes transposed lists one after another: a tile of 64 keys, and
// step by step the query tiles that attend to it. dk and dv of so many keys fill the registers of
// two warpgroups, so each has one of them, and a third computes dq:
//
//   weights   scores = k q', weights            dv += weights dout    ' is transposed
//   ds        grad = v dout', ds from slopes    dk += ds q
//   dq        ds' k, added to memory
//   producer  a thread plans; a warp loads k, q, lse2 as stages become free; another v, dout and
//             delta; in a fixed order one more asks for the turns of dq (wide_backward_turns.cuh)
//
// The first two do the same with different tensors, so their parts of the pipeline are two Halves.
// Weights and ds are left operands from shared memory: as operands in registers they would need 16
// more of them. What ds needs of a weight (its slope) crosses in fp32.
//
// Barrier        completes a phase when                                         who waits
//   is_planned     the planner has written the item of that slot                  all others
//   planned_empty  all others have used it for the last time                      planner
// of a Half:
//   keys_full      k or v of an item have arrived                                 who multiplies it
//   keys_empty     they have been multiplied for the last time                    its producer
//   is_full        q or dout, its numbers and the step have arrived               weights, ds
//   is_empty       both have used them for the last time                          its producer
// in a fixed order, of every other step:
//   may_add        it is the step's turn                                          dq
//   is_added       every warp has begun to add all of it                          turns
// by number (WideMeeting):
//   slopes_full    the slopes of a step are stored                                ds
//   slopes_empty   they have been read                                            weights
//   ds_full        ds of a step is stored                                         dq
//   ds_empty       it has been multiplied                                         ds
#pragma once

#include "kernels/sm90/backward_shared.cuh"

namespace keyhole::sm90 {

inline constexpr int kWideThreads = 4 * kWarpgroup;

// Named barriers of two warpgroups, and of one.
enum WideMeeting : int { kSlopesFull = 1, kSlopesEmpty, kDsFull, kDsEmpty, kPairsStored };
inline constexpr int kPair = 2 * kWarpgroup;

enum class Half { weights, ds };

// Query tiles of steps that are not over: two stages, and two steps whose dq is still on its way.
inline constexpr int kTilesInUse = 4;  // step n has place n modulo 4

// Step n has turn barriers n modulo 2: a turn is asked for while the step before is added.
inline constexpr int kTurnsInUse = 2;

template <class C>
struct WideShared {
  using Keys = Panels<C::tile_k, C::head_dim>;
  using Queries = Panels<C::tile_q, C::head_dim>;
  using Pairs = Panels<C::tile_k, C::tile_q>;
  static constexpr uint32_t k_bytes = Keys::bytes * Keys::count;
  static constexpr uint32_t q_bytes = Queries::bytes * Queries::count;
  static_assert(kTilesInUse == 2 * C::stages);

  struct Tiles {
    alignas(1024) unsigned char keys[k_bytes];         // k or v
    unsigned char rows[C::stages][q_bytes];            // q or dout
    unsigned char pairs[Pairs::bytes * Pairs::count];  // weights or ds, [key][query]
  };
  struct Stages {
    float numbers[C::stages][C::tile_q];  // lse2 or delta
    int32_t bitmap[C::stages];
    uint64_t keys_full, keys_empty;
    uint64_t is_full[C::stages], is_empty[C::stages];
  };
  Tiles tiles[2];  // of a Half
  float4 slopes[C::tile_q / 8][kWarpgroup];
  Stages halves[2];
  int32_t tile[kTilesInUse];  // of a step, for dq
  PlannedKeys planned[kSlots];
  uint64_t is_planned[kSlots], planned_empty[kSlots];
  Waits waits;
  uint64_t may_add[kTurnsInUse], is_added[kTurnsInUse];

  template <bool kTurns>
  __device__ void init() {
    constexpr int kWarps = kWarpgroup / 32, kProducers = kTurns ? 3 : 2;
    for (int i = 0; i < kSlots; ++i) {
      init_barrier(is_planned[i], 1);
      init_barrier(planned_empty[i], 3 * kWarps + kProducers);
    }
    for (Stages& half : halves) {
      const bool has_k = &half == &halves[int(Half::weights)];
      init_barrier(half.keys_full, 1);
      init_barrier(half.keys_empty, has_k ? 2 * kWarps : kWarps);  // dq multiplies k, too
      for (int i = 0; i < C::stages; ++i) {
        init_barrier(half.is_full[i], 1 + 32);  // TMA, and 32 lanes that copy numbers
        init_barrier(half.is_empty[i], 2 * kWarps);
      }
    }
    if constexpr (kTurns) {
      for (int i = 0; i < kTurnsInUse; ++i) {
        init_barrier(may_add[i], 1);
        init_barrier(is_added[i], kWarps);
      }
    }
    waits.gave_up = 0;
    publish_barriers();
  }
  __device__ __forceinline__ void await(uint64_t& barrier, uint32_t parity) {
    waits.await(barrier, parity);
  }
};

}  // namespace keyhole::sm90
