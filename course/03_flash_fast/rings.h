// course/03_flash_fast/rings.h
// The pipeline of steps 6 and 7: a producer fills stages of shared memory, consumers empty them.
//
//   producer --- k_full, v_full: the bytes have arrived -----------> consumers
//            <-- k_empty, v_empty: all eight warps have read them --
//
// A ring is used stage by stage, around and around. Each time around, the phases of its barriers
// change their parity. Before the first phase ends, parity 1 counts as over: the producer finds all
// stages empty.
#pragma once

#include "products.h"

namespace course {

// Values are released later than keys (step 7): with three stages of them the next ones arrive in
// time. 32 + 2 * 32 + 3 * 32 KiB: 192 of the 227 that a CTA may have.
inline constexpr int kKeyStages = 2, kValueStages = 3;
inline constexpr int kConsumerWarps = 8;
inline constexpr int kThreads = 384;  // three warpgroups: the producer, then two consumers

// Registers. The SM has 65536: 168 a thread at launch. The producer keeps 40 and gives up the rest;
// 40 + 2 * 232 = 3 * 168.
inline constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;

template <int kStages>
struct Place {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

struct Rings {
  unsigned char q[kTileBytes], k[kKeyStages][kTileBytes], v[kValueStages][kTileBytes];
  std::uint64_t q_full;
  std::uint64_t k_full[kKeyStages], k_empty[kKeyStages];
  std::uint64_t v_full[kValueStages], v_empty[kValueStages];
  Waits waits;

  // By one thread, before __syncthreads().
  __device__ void init() {
    init_barrier(q_full, 1);
    for (std::uint64_t& barrier : k_full) init_barrier(barrier, 1);
    for (std::uint64_t& barrier : v_full) init_barrier(barrier, 1);
    for (std::uint64_t& barrier : k_empty) init_barrier(barrier, kConsumerWarps);
    for (std::uint64_t& barrier : v_empty) init_barrier(barrier, kConsumerWarps);
    waits.gave_up = 0;
    publish_barriers();
  }
};

struct Maps {
  CUtensorMap q, k, v;
};
inline Maps describe(const Tensors& t) {
  return {describe(t.q, t.length), describe(t.k, t.length), describe(t.v, t.length)};
}

// The producer: one thread. Keys run one tile ahead of values, because scores come before weights.
__device__ __forceinline__ void produce(Rings& rings, const Maps& maps, int first_query, int head,
                                        int tiles) {
  Place<kKeyStages> k;
  Place<kValueStages> v;
  const auto load_keys = [&](int tile) {
    rings.waits.await(rings.k_empty[k.stage], k.parity ^ 1);
    arrive_and_expect(rings.k_full[k.stage], kTileBytes);
    load_tile(rings.k[k.stage], maps.k, rings.k_full[k.stage], tile * kTile, head);
    k.next();
  };
  const auto load_values = [&](int tile) {
    rings.waits.await(rings.v_empty[v.stage], v.parity ^ 1);
    arrive_and_expect(rings.v_full[v.stage], kTileBytes);
    load_tile(rings.v[v.stage], maps.v, rings.v_full[v.stage], tile * kTile, head);
    v.next();
  };
  arrive_and_expect(rings.q_full, kTileBytes);
  load_tile(rings.q, maps.q, rings.q_full, first_query, head);
  load_keys(0);
  for (int tile = 1; tile < tiles; ++tile) {
    load_keys(tile);
    load_values(tile - 1);
  }
  load_values(tiles - 1);
}

}  // namespace course
