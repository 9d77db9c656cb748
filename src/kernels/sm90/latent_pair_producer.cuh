// src/kernels/sm90/latent_pair_producer.cuh
// The producer warps of the pair form of attention in latent form: they gather the rows of a list.
#pragma once

#include "kernels/sm90/latent_pair_shared.cuh"

namespace keyhole::sm90 {

template <class T>
class LatentPairProducer {
  using L = LatentPair;
  static constexpr int kLanes = 8;                            // copy 128 bytes of a row
  static constexpr int kRowsAtOnce = kWarpgroup / kLanes;     // by all threads
  static constexpr int kOwnKeys = kLatentKeys / kRowsAtOnce;  // of a thread: neighbours
  static constexpr int kTailLanes = L::kTailColumns / 8;      // copy the rest of a row
  static_assert(kTailLanes * 2 == kLanes && kOwnKeys == 4);

 public:
  __device__ LatentPairProducer(const device::GatherForwardParams& p, const LatentWork& work,
                                const device::KeyList& list, LatentPairShared& shared)
      : p_(p), work_(work), list_(list), shared_(shared), rank_(int32_t(cluster_rank())) {}

  __device__ __forceinline__ void run() {
    const uint32_t num_blocks = shared_.num_blocks;
    int32_t now[kOwnKeys];
    ask(0, now);
    load_queries();
#pragma unroll 1
    for (uint32_t block = 0; block < num_blocks; ++block) {
      int32_t next[kOwnKeys];
      ask(block + 1, next);
      load_block(block + 1, now);
#pragma unroll
      for (int i = 0; i < kOwnKeys; ++i) now[i] = next[i];
    }
    device::await_copies<0>();
  }

 private:
  // Always computed anew: there are few registers.
  static __device__ __forceinline__ int thread() {
    return int(device::thread_index() % kWarpgroup);
  }
  static __device__ __forceinline__ int own_row(int i) { return thread() / kLanes * kOwnKeys + i; }
  __device__ __forceinline__ int32_t first_column() const { return rank_ * L::kColumns; }
  __device__ __forceinline__ int32_t first_tail_column() const {
    return 2 * L::kColumns + rank_ * L::kTailColumns;
  }

  // A chunk of 8 columns from `column` on: zeros where there is no row, or no such column.
  __device__ __forceinline__ void copy(uint32_t to, const T* row, int32_t column,
                                       bool is_row) const {
    device::copy_async_or_zeros(to, row + column, is_row && column < p_.sizes.head_dim);
  }

  // ---- q ----

  __device__ __forceinline__ const T* row_of_head(int row) const {
    const int32_t head = work_.first_head + (row < work_.num_heads ? row : 0);
    return p_.q.template row<const T>(work_.batch, head, work_.query);
  }
  __device__ __forceinline__ void load_queries() {
    // Into the first place of the ring, which is empty: what goes into registers.
#pragma unroll 1
    for (int row = thread() / kLanes; row < L::kHeads; row += kRowsAtOnce) {
      const int chunk = thread() % kLanes;
      const int32_t column = chunk < kTailLanes
                                 ? first_column() + L::kColumns - L::kTailColumns + 8 * chunk
                                 : first_tail_column() + 8 * (chunk - kTailLanes);
      copy(smem_address(shared_.k[0][row / 64]) + chunk_in_panel(row % 64, chunk), row_of_head(row),
           column, row < work_.num_heads);
    }
    mma::arrive_when_copied(shared_.k_full[0]);
    if (thread() % 32 == 0) arrive(shared_.k_full[0]);
#pragma unroll 1
    for (int row = thread() / kLanes; row < L::kHeads; row += kRowsAtOnce) {
      const int chunk = thread() % kLanes;
      const T* const from = row_of_head(row);
#pragma unroll
      for (int panel = 0; panel < 3; ++panel) {
        copy(smem_address(shared_.q[row / 64][panel]) + chunk_in_panel(row % 64, chunk), from,
             first_column() + 64 * panel + 8 * chunk, row < work_.num_heads);
      }
    }
#pragma unroll 1
    for (int row = thread() / kTailLanes; row < L::kHeads; row += kWarpgroup / kTailLanes) {
      const int lane = thread() % kTailLanes;
      copy(smem_address(shared_.q_half) + chunk_in_panel(row % 64, row / 64 * kTailLanes + lane),
           row_of_head(row), first_column() + 3 * 64 + 8 * lane, row < work_.num_heads);
    }
    mma::arrive_when_copied(shared_.q_full);
  }

  // ---- k ----

  // The first 32 rows of a block have the keys whose weights this CTA makes.
  __device__ __forceinline__ void ask(uint32_t block, int32_t (&keys)[kOwnKeys]) const {
#pragma unroll
    for (int i = 0; i < kOwnKeys; ++i) {
      keys[i] = list_.at(block * kLatentKeys + uint32_t(own_row(i) ^ rank_ * L::kOwnKeys));
    }
  }
  __device__ __forceinline__ const T* row_of(int32_t key) const {
    return p_.k.template row<const T>(work_.batch, work_.kv_head, max(key, 0));
  }
  __device__ __forceinline__ void load_block(uint32_t place, const int32_t (&keys)[kOwnKeys]) {
    const uint32_t stage = place % L::kStages;
    shared_.waits.await(shared_.k_empty[stage], place / L::kStages % 2 ^ 1);
    publish_there(stage, keys);
    const uint32_t to = smem_address(shared_.k) + stage * uint32_t(sizeof(shared_.k[0]));
#pragma unroll
    for (int i = 0; i < kOwnKeys; ++i) {
      const T* const from = row_of(keys[i]);
#pragma unroll
      for (int panel = 0; panel < L::kPanels; ++panel) {
        copy(to + uint32_t(panel * kLatentPanelBytes) +
                 chunk_in_panel(own_row(i), thread() % kLanes),
             from, first_column() + 64 * panel + 8 * (thread() % kLanes), keys[i] >= 0);
      }
    }
    // The rest of two rows at a time.
    const uint32_t tail = smem_address(shared_.k_tail) + stage / 2 * kLatentPanelBytes;
    const int lane = thread() % kTailLanes, which = thread() / kTailLanes % 2;
#pragma unroll
    for (int i = 0; i < kOwnKeys; i += 2) {
      const int32_t key = which == 0 ? keys[i] : keys[i + 1];
      copy(tail + chunk_in_panel(own_row(i) + which, int(stage % 2) * kTailLanes + lane),
           row_of(key), first_tail_column() + 8 * lane, key >= 0);
    }
    mma::arrive_when_copied(shared_.k_full[stage]);
    if (thread() % 32 == 0) arrive(shared_.k_full[stage]);
  }
  // The first warps have the own keys.
  __device__ __forceinline__ void publish_there(uint32_t stage,
                                                const int32_t (&keys)[kOwnKeys]) const {
    if (thread() / kLanes * kOwnKeys >= L::kOwnKeys) return;
    const uint16_t bits = bits_of_keys(keys);
    if (thread() % 32 == 0) shared_.there[stage].of_warp[thread() / 32] = bits;
  }

  const device::GatherForwardParams& p_;
  const LatentWork& work_;
  const device::KeyList list_;
  LatentPairShared& shared_;
  const int32_t rank_;
};

}  // namespace keyhole::sm90
