// src/kernels/sm90/latent_forward_shared.cuh
// The pipeline of attention over key lists in latent form: v is the first columns of k, and many
// query heads share a list. A CTA has 64 heads of one query. Its list is followed in pairs of
// blocks of 64 keys:
//
//   producers       4 warps copy the rows that a block names, half of the columns at a time
//   warpgroup 0     scores of the even block      out columns 0 .. 255, of both blocks
//   warpgroup 1     scores of the odd block       out columns 256 .. 511, of both blocks
//
// A warpgroup multiplies its own weights from registers, and those of the other one from shared
// memory. Columns 0 .. 255 of the even block are read by warpgroup 0 alone, and 256 .. of the odd
// block by warpgroup 1 alone: these halves are given back, and asked for, first.
#pragma once

#include "kernels/sm90/latent_forward_rows.cuh"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/stages.cuh"

namespace keyhole::sm90 {

inline constexpr int kLatentThreads = 3 * kWarpgroup;
inline constexpr int kLatentPanels = 9, kLatentValuePanels = 8;  // of 64 columns
inline constexpr int kLatentHalf = kLatentValuePanels / 2;       // panels of the first half
inline constexpr int kLatentProducerRegisters = 72, kLatentConsumerRegisters = 216;
static_assert(
    kLatentProducerRegisters + 2 * kLatentConsumerRegisters <= 3 * 168,
    "a CTA of 384 threads is given 168 registers a thread; asking for more waits for ever");
// Numbered barriers of the CTA.
enum LatentBarrier : int { kRowMaximum = 1, kEndOfPass = 2, kRowSums = 3 };

struct LatentShared {
  alignas(1024) unsigned char q[kLatentValuePanels][kLatentPanelBytes];
  alignas(1024) unsigned char k[2][kLatentPanels][kLatentPanelBytes];
  // The weights of a block, for the other warpgroup. At first the last panel of q.
  alignas(1024) unsigned char weights[2][kLatentPanelBytes];
  alignas(8) uint64_t q_full;
  uint64_t k_full[2][2], k_empty[2][2];  // [block of a pair][half of the columns]
  uint64_t weights_full[2], weights_empty[2];
  // A bit per key of a block: it is no padding.
  union {
    uint64_t all;
    uint16_t of_warp[kWarpgroup / 32];
  } there[2];
  float row_max[2][kLatentHeads], row_sum[2][kLatentHeads];
  int32_t is_over;  // a weight exceeds its limit
  Waits waits;

  __device__ void init() {
    constexpr int kWarps = kWarpgroup / 32;
    init_barrier(q_full, kWarpgroup);
    for (int block = 0; block < 2; ++block) {
      for (int half = 0; half < 2; ++half) {
        init_barrier(k_full[block][half], kWarpgroup + kWarps);  // copies; the bits of `there`
        init_barrier(k_empty[block][half], block == half ? kWarps : 2 * kWarps);
      }
      init_barrier(weights_full[block], kWarpgroup);
      init_barrier(weights_empty[block], kWarps);
    }
    is_over = 0;
    waits = {};
    publish_barriers();
  }
};
inline constexpr int64_t kLatentSharedBytes = sizeof(LatentShared);
static_assert(kLatentSharedBytes <= 227 * 1024, "does not fit");

}  // namespace keyhole::sm90
