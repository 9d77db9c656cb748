// src/kernels/sm90/latent_backward_shared.cuh
// The pipeline of the backward pass in latent form. A cluster of two CTAs has up to 128 heads of
// one query and follows its list in blocks of 32 keys. Each CTA has half of the columns of q, dout
// and k: 256 of those that v has too, and 32 of the rest.
//
//   producers        4 warps copy the CTA's columns of the rows that a block names
//   warpgroups 0, 1  64 heads each: products q . k and dout . v over the CTA's columns. The CTAs
//                    exchange these sums; each makes p and ds for 16 of the keys, and stores them
//                    in both. Then dq += ds . k for the CTA's columns
//   warpgroup 2      dk = ds^T q and dv = p^T dout for the CTA's columns, added to fp32 sums in
//                    global memory, 128 bytes of a row at a time
//
// So a row of dk or dv is summed over all heads before it is added, and nothing but scores crosses.
#pragma once

#include "kernels/mma/ptx.cuh"
#include "kernels/sm90/cluster.cuh"
#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/stages.cuh"

namespace keyhole::sm90 {

struct LatentBackward {
  static constexpr int kHeads = 128, kRowHeads = 64;  // of a cluster, of a warpgroup
  static constexpr int kKeys = 32;                    // of a block
  static constexpr int kOwnKeys = kKeys / 2;          // whose p and ds a CTA makes
  static constexpr int kThreads = 4 * kWarpgroup;
  static constexpr int kPanels = 4;                                 // of 64 columns that v has too
  static constexpr int kColumns = 64 * kPanels, kTailColumns = 32;  // of a CTA
  static constexpr int kStages = 2, kListSlots = 4;
  static constexpr int kRowRegisters = 192, kKeyRegisters = 104, kProducerRegisters = 24;
  static_assert(2 * kRowRegisters + kKeyRegisters + kProducerRegisters <= 4 * 128,
                "a CTA of 512 threads is given 128 registers a thread");

  // Where a panel's chunk of 8 columns comes from, among the CTA's columns. A warp of a product
  // over columns has chunks 2 w and 2 w + 1 of its panel: of two neighbouring panels it has 32
  // neighbouring columns, a line of the sums.
  static constexpr __device__ int column_of(int panel, int chunk) {
    return 8 * (panel / 2 * 16 + chunk / 2 * 4 + panel % 2 * 2 + chunk % 2);
  }
};

struct LatentBackwardShared {
  using L = LatentBackward;
  alignas(1024) unsigned char q[L::kPanels][L::kHeads * 128];
  alignas(1024) unsigned char dout[L::kPanels][L::kHeads * 128];
  alignas(1024) unsigned char k[L::kStages][L::kPanels][L::kKeys * 128];
  // The rest of the columns, 64 bytes a row: of head r in the left half of row r, of head 64 + r in
  // the right half; of keys by stage.
  alignas(1024) unsigned char q_tail[L::kRowHeads * 128];
  alignas(1024) unsigned char k_tail[L::kKeys * 128];
  // A row per head: p of the keys of a block, then ds.
  alignas(1024) unsigned char weights[2][L::kHeads * 128];
  // Sums over the columns of the other CTA, as its threads hold them: of q . k, of dout . v.
  alignas(128) uint4 others[2][2][2][kWarpgroup];  // [warpgroup][product]
  int32_t keys[L::kListSlots][L::kKeys];           // negative: padding
  float2 rows[L::kHeads];                          // -lse2 and delta
  alignas(8) uint64_t q_full;
  uint64_t k_full[L::kStages], k_empty[L::kStages];
  uint64_t others_full[2][2];   // [warpgroup][product]
  uint64_t weights_full[2][2];  // [block][warpgroup]: its rows are there
  // [block]: all rows may be read by products; all of both CTAs have been.
  uint64_t weights_ready[2], weights_empty[2];
  Waits waits;

  __device__ void init(int row_groups) {
    constexpr int kWarps = kWarpgroup / 32;
    init_barrier(q_full, kWarpgroup);
    for (int stage = 0; stage < L::kStages; ++stage) {
      init_barrier(k_full[stage], kWarpgroup + L::kKeys / 2);  // copies; the keys
      init_barrier(k_empty[stage], row_groups * kWarps);
    }
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < 2; ++j) {
        init_barrier(others_full[i][j], 1);
        init_barrier(weights_full[i][j], kWarps);
      }
      init_barrier(weights_ready[i], row_groups * kWarps);
      init_barrier(weights_empty[i], 2 * kWarps);
    }
    waits = {};
    publish_barriers();
  }
};
inline constexpr int64_t kLatentBackwardSharedBytes = sizeof(LatentBackwardShared);
static_assert(kLatentBackwardSharedBytes <= 227 * 1024, "does not fit");

// The descriptor of an operand at the beginning of `shared`, from which those of its members differ
// by constants. Made where it is needed: otherwise the compiler would keep dozens of them.
__device__ __forceinline__ uint64_t shared_operand(const LatentBackwardShared& shared) {
  return operand(mma::opaque(smem_address(&shared)), 0);
}
__device__ __forceinline__ int offset_of(const LatentBackwardShared& shared,
                                         const unsigned char* member) {
  return int(member - reinterpret_cast<const unsigned char*>(&shared));
}
// The same operand, of several panels (ptx.cuh).
__device__ __forceinline__ uint64_t in_panels(uint64_t operand, int panel_bytes) {
  return operand | uint64_t(panel_bytes >> 4) << 16;
}

// The heads of a query that a cluster has, and its CTA's place.
struct LatentBackwardWork {
  int32_t batch, kv_head, first_head, num_heads;  // first_head: of all query heads
  int64_t query;
  uint32_t rank;  // of the CTA: which half of the columns

  // 1: the second warpgroup has no heads.
  __device__ int row_groups() const { return num_heads > LatentBackward::kRowHeads ? 2 : 1; }
  __device__ int32_t first_column() const { return int32_t(rank) * LatentBackward::kColumns; }
  __device__ int32_t first_tail_column() const {
    return 2 * LatentBackward::kColumns + int32_t(rank) * LatentBackward::kTailColumns;
  }
};

}  // namespace keyhole::sm90
