// src/kernels/sm90/latent_forward_producer.cuh
// The producer warps of attention in latent form: they gather the rows of a list.
#pragma once

#include "kernels/device/key_list.cuh"
#include "kernels/sm90/latent_forward_shared.cuh"

namespace keyhole::sm90 {

template <class T>
class LatentProducer {
  static constexpr int kLanes = 8;                                      // copy 128 bytes of a row
  static constexpr int kOwnRows = kLatentKeys / (kWarpgroup / kLanes);  // of a thread: neighbours
  static constexpr int kElements = 16 / int(sizeof(T));                 // of a copy

 public:
  __device__ LatentProducer(const device::GatherForwardParams& p, const LatentWork& work,
                            const device::KeyList& list, LatentShared& shared)
      : p_(p),
        work_(work),
        list_(list),
        shared_(shared),
        num_panels_((p.sizes.head_dim - thread() % kLanes * kElements + 63) / 64) {}

  __device__ __forceinline__ void load_queries() {
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const bool is_row = own_row(i) < work_.num_heads;
      const T* const from = p_.q.template row<const T>(
          work_.batch, work_.first_head + (is_row ? own_row(i) : 0), work_.query);
#pragma unroll
      for (int panel = 0; panel < kLatentValuePanels; ++panel) {
        copy(smem_address(shared_.q[panel]), i, from, panel, is_row);
      }
      // The last panel: each warpgroup takes it into registers from a place of its own.
      copy(smem_address(shared_.weights[0]), i, from, kLatentValuePanels, is_row);
      copy(smem_address(shared_.weights[1]), i, from, kLatentValuePanels, is_row);
    }
    mma::arrive_when_copied(shared_.q_full);
  }

  // All blocks of the list, in pairs; the last one may be padding alone. The halves that are given
  // back first are loaded first.
  __device__ __forceinline__ void load_keys(int num_pairs) {
    Pair now;
    ask(0, now);
    for (int pair = 0; pair < num_pairs; ++pair) {
      Pair next;
      ask(pair + 1, next);
      load_half<0, 0>(now.even);
      load_half<1, 1>(now.odd);
      load_half<0, 1>(now.even);
      load_half<1, 0>(now.odd);
      now = next;
      ++num_pairs_;
    }
  }

 private:
  struct Rows {
    int32_t key[kOwnRows];  // negative: padding
  };
  struct Pair {
    Rows even, odd;
  };

  static __device__ __forceinline__ int thread() { return int(threadIdx.x) % kWarpgroup; }
  static __device__ __forceinline__ int own_row(int i) { return thread() / kLanes * kOwnRows + i; }

  __device__ __forceinline__ void copy(uint32_t panel_at, int i, const T* row, int panel,
                                       bool is_row) const {
    device::copy_async_or_zeros(panel_at + chunk_in_panel(own_row(i), thread() % kLanes),
                                row + thread() % kLanes * kElements + panel * 64,
                                is_row && panel < num_panels_);
  }

  __device__ __forceinline__ void ask(int pair, Pair& rows) const {
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const uint32_t first = uint32_t(pair * 2 * kLatentKeys + own_row(i));
      rows.even.key[i] = list_.at(first);
      rows.odd.key[i] = list_.at(first + kLatentKeys);
    }
  }

  template <int kSide, int kHalf>
  __device__ __forceinline__ void load_half(const Rows& rows) {
    constexpr int kFirst = kHalf == 0 ? 0 : kLatentHalf;
    constexpr int kEnd = kHalf == 0 ? kLatentHalf : kLatentPanels;
    shared_.waits.await(shared_.k_empty[kSide][kHalf], num_pairs_ % 2 ^ 1);
    // Its owner has given back this half, and no longer needs the bits of the block before.
    if (kHalf == kSide) publish_there(kSide, rows);
#pragma unroll
    for (int i = 0; i < kOwnRows; ++i) {
      const bool is_key = rows.key[i] >= 0;
      const T* const from =
          p_.k.template row<const T>(work_.batch, work_.kv_head, is_key ? rows.key[i] : 0);
#pragma unroll
      for (int panel = kFirst; panel < kEnd; ++panel) {
        copy(smem_address(shared_.k[kSide][panel]), i, from, panel, is_key);
      }
    }
    mma::arrive_when_copied(shared_.k_full[kSide][kHalf]);
    if (thread() % 32 == 0) arrive(shared_.k_full[kSide][kHalf]);
  }

  // A warp has 16 neighbouring keys of a block.
  __device__ __forceinline__ void publish_there(int side, const Rows& rows) const {
    const uint16_t bits = bits_of_keys(rows.key);
    if (thread() % 32 == 0) shared_.there[side].of_warp[thread() / 32] = bits;
  }

  const device::GatherForwardParams& p_;
  const LatentWork& work_;
  const device::KeyList& list_;
  LatentShared& shared_;
  const int num_panels_;    // in which this thread's columns exist
  uint32_t num_pairs_ = 0;  // of all passes
};

}  // namespace keyhole::sm90
