// src/kernels/sm90/latent_pair_shared.cuh
// The pipeline of attention in latent form for more than 64 heads of a kv head. A cluster of two
// CTAs has up to 128 heads of one query and follows its list in blocks of 64 keys. Each CTA has
// half of the columns of q and k: 256 of those that v has too, and 32 of the rest. So each row is
// gathered once for all of these heads.
//
//   producers        4 warps copy the CTA's columns of the rows that a block names
//   warpgroups 0, 1  64 heads each: products q . k over the CTA's columns. The sums of the keys
//                    whose weights the other CTA makes go there, thread to thread, and the weights
//                    come back. Then out += p . v for the CTA's columns
//
// A step of a warpgroup, with no product in flight at either end:
//
//   sums of block j + 1 are sent   out += p . v (j), q . k (j + 2) begin   weights (j + 1) are made
//
// Warps take one buffer for sums and one for weights, and no barrier says when these are empty: a
// warp and its fellow in the other CTA alternate. Each sends the weights of a block after it has
// read its fellow's sums, and the sums of the next block after it has read its fellow's weights. So
// whoever sends knows from what it has read that the buffer is free.
//
// Weights are taken against a base of the row. A warp whose weights exceed their limit raises its
// own base to a whole number and sends it with the weights. Then both take the larger one; between
// whole numbers that is a shift of exponents, without rounding.
#pragma once

#include "kernels/sm90/cluster.cuh"
#include "kernels/sm90/latent_forward_rows.cuh"
#include "kernels/sm90/stages.cuh"

namespace keyhole::sm90 {

struct LatentPair {
  static constexpr int kHeads = 2 * kLatentRowHeads;                             // of a cluster
  static constexpr int kThreads = 3 * kWarpgroup, kWarps = 2 * kWarpgroup / 32;  // with products
  static constexpr int kOwnKeys = kLatentKeys / 2;  // whose weights a CTA makes
  static constexpr int kPanels = 4, kColumns = 64 * kPanels, kTailColumns = 32;  // of a CTA
  // Steps of 16 columns of q that are kept in registers: the last 2 of the panels, and the tail.
  static constexpr int kRegisterSteps = 4;
  static constexpr int kStages = 4;
  static constexpr int kConsumerRegisters = 232, kProducerRegisters = 40;
  static_assert(kProducerRegisters + 2 * kConsumerRegisters <= 3 * 168,
                "a CTA of 384 threads is given 168 registers a thread");
  // Numbered barriers: the turn of warpgroup 0, of warpgroup 1.
  static constexpr int kTurn = 1;
};

struct LatentPairShared {
  using L = LatentPair;
  alignas(1024) unsigned char k[L::kStages][L::kPanels][kLatentPanelBytes];
  alignas(1024) unsigned char q[2][3][kLatentPanelBytes];  // by warpgroup
  // 64 bytes a row: of a head of warpgroup 0 in the left half of row r, of warpgroup 1 in the right
  // one; of stages 2 i and 2 i + 1.
  alignas(1024) unsigned char q_half[kLatentPanelBytes];
  alignas(1024) unsigned char k_tail[L::kStages / 2][kLatentPanelBytes];
  // By warp, from its fellow in the other CTA, as its threads hold them.
  alignas(128) uint4 sums[L::kWarps][4][32];
  alignas(128) uint4 weights[L::kWarps][2][32];
  // By warp, for rows r and r + 8: the fellow's bases and sums {base, base, sum, sum}; the bases of
  // this CTA {agreed, own, agreed, own}.
  alignas(128) float4 numbers[L::kWarps][8];
  alignas(128) float4 bases[L::kWarps][8];
  alignas(8) uint64_t q_full;
  uint64_t k_full[L::kStages], k_empty[L::kStages];
  uint64_t sums_full[L::kWarps], weights_full[L::kWarps];
  // A bit per own key of a block: it is no padding.
  union {
    uint32_t all;
    uint16_t of_warp[L::kOwnKeys / 16];
  } there[L::kStages];
  uint32_t num_blocks;  // of the list
  Waits waits;

  __device__ void init(uint32_t blocks) {
    init_barrier(q_full, kWarpgroup);
    for (int stage = 0; stage < L::kStages; ++stage) {
      init_barrier(k_full[stage], kWarpgroup + kWarpgroup / 32);  // copies; the bits of `there`
      init_barrier(k_empty[stage], L::kWarps);
    }
    for (int warp = 0; warp < L::kWarps; ++warp) {
      init_barrier(sums_full[warp], 1);
      init_barrier(weights_full[warp], 1);
    }
    num_blocks = blocks;
    waits = {};
    publish_barriers();
  }
  // Of warps with products. ptxas keeps apart what is before and after a loop with a pause. Else it
  // computes addresses once for several of these waits, and registers run out.
  __device__ __forceinline__ void await(uint64_t& barrier, uint32_t parity) {
    waits.await<true>(barrier, parity);
  }
};
inline constexpr int64_t kLatentPairSharedBytes = sizeof(LatentPairShared);
static_assert(kLatentPairSharedBytes <= 227 * 1024, "does not fit");

// What every launch passes beside its parameters.
struct LatentPairGrid {
  LatentGrid heads;
  float factor;  // of q . k: base-2 scores
  uint32_t one;  // 1.0 twice, packed, which the compiler does not know
};

__device__ __forceinline__ LatentWork latent_pair_work(const device::Sizes& sizes,
                                                       const LatentPairGrid& grid) {
  return latent_work(sizes, grid.heads, blockIdx.x / 2, LatentPair::kHeads);
}

// Places of the ring: the first one has the part of q that is kept in registers, the others have
// the blocks of the list. There are two blocks at least, of padding if need be.
__device__ __forceinline__ uint32_t latent_pair_blocks(const device::KeyList& list) {
  return max(2u, (uint32_t(list.count) + kLatentKeys - 1) / kLatentKeys);
}

}  // namespace keyhole::sm90
