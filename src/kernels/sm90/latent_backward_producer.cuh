// src/kernels/sm90/latent_backward_producer.cuh
// The producer warps of the backward pass in latent form: they gather the rows of a list.
#pragma once

#include "kernels/device/key_list.cuh"
#include "kernels/device/params.h"
#include "kernels/sm90/latent_backward_shared.cuh"

namespace keyhole::sm90 {

template <class T>
class LatentBackwardProducer {
  using L = LatentBackward;
  static constexpr int kLanes = 8;  // copy 128 bytes of a row
  static constexpr int kRowsAtOnce = kWarpgroup / kLanes;
  static constexpr int kOwnKeys = L::kKeys / kRowsAtOnce;  // of a thread: neighbours
  static constexpr int kTailLanes = L::kTailColumns / 8;

 public:
  __device__ LatentBackwardProducer(const device::BackwardParams& p, const LatentBackwardWork& work,
                                    const device::KeyList& list, LatentBackwardShared& shared)
      : p_(p), work_(work), list_(list), shared_(shared) {}

  __device__ __forceinline__ void load_queries() {
    load_panels(shared_.q, p_.q, p_.sizes.head_dim);
    load_panels(shared_.dout, p_.dout, p_.sizes.v_head_dim);
#pragma unroll 1
    for (int row = thread() / kTailLanes; row < work_.row_groups() * L::kRowHeads;
         row += kWarpgroup / kTailLanes) {
      copy_tail(shared_.q_tail, row_of_head(p_.q, row), row % L::kRowHeads, row / L::kRowHeads,
                row < work_.num_heads);
    }
    mma::arrive_when_copied(shared_.q_full);
  }

  __device__ __forceinline__ void load_keys(int num_blocks) {
    Keys now;
    ask(0, now);
#pragma unroll 1
    for (int block = 0; block < num_blocks; ++block) {
      Keys next;
      ask(block + 1, next);
      load_block(block, now);
      now = next;
    }
  }

 private:
  struct Keys {
    int32_t own[kOwnKeys];
    // Of the row whose last columns this thread copies: one of its own.
    __device__ __forceinline__ int32_t of_tail() const {
      static_assert(kOwnKeys == 2 && kTailLanes * kOwnKeys == kLanes);
      return thread() / kTailLanes % 2 == 0 ? own[0] : own[1];
    }
  };

  // Always computed anew: there are few registers.
  static __device__ __forceinline__ int thread() {
    return int(device::thread_index() % kWarpgroup);
  }
  static __device__ __forceinline__ int own_row(int i) { return thread() / kLanes * kOwnKeys + i; }

  // Rows from num_heads on are zeros.
  __device__ __forceinline__ const T* row_of_head(const device::DeviceTensor& tensor,
                                                  int row) const {
    const int32_t head = work_.first_head + (row < work_.num_heads ? row : 0);
    return tensor.template row<const T>(work_.batch, head, work_.query);
  }
  __device__ __forceinline__ void load_panels(unsigned char (&to)[L::kPanels][L::kHeads * 128],
                                              const device::DeviceTensor& from,
                                              int32_t cols) const {
#pragma unroll 1
    for (int row = thread() / kLanes; row < work_.row_groups() * L::kRowHeads; row += kRowsAtOnce) {
      copy_row<L::kHeads>(to, row_of_head(from, row), cols, row, row < work_.num_heads);
    }
  }

  template <int kRows>
  __device__ __forceinline__ void copy_row(unsigned char (&to)[L::kPanels][kRows * 128],
                                           const T* from, int32_t cols, int row,
                                           bool is_row) const {
    const int chunk = thread() % kLanes;
    const uint32_t place = uint32_t(row * 128 + (chunk ^ row % 8) * 16);
#pragma unroll
    for (int panel = 0; panel < L::kPanels; ++panel) {
      const int32_t col = work_.first_column() + L::column_of(panel, chunk);
      device::copy_async_or_zeros(smem_address(to[panel]) + place, from + col,
                                  is_row && col < cols);
    }
  }
  // half: of the panel's rows.
  __device__ __forceinline__ void copy_tail(unsigned char* panel, const T* from, int row, int half,
                                            bool is_row) const {
    const int lane = thread() % kTailLanes, chunk = half * kTailLanes + lane;
    const int32_t col = work_.first_tail_column() + lane * 8;
    device::copy_async_or_zeros(smem_address(panel) + uint32_t(row * 128 + (chunk ^ row % 8) * 16),
                                from + col, is_row && col < p_.sizes.head_dim);
  }

  // The first 16 rows of a block have the keys whose weights this CTA makes.
  __device__ __forceinline__ int32_t key_at(int block, int row) const {
    return list_.at(uint32_t(block * L::kKeys + (row ^ int(work_.rank) * L::kOwnKeys)));
  }
  __device__ __forceinline__ void ask(int block, Keys& keys) const {
#pragma unroll
    for (int i = 0; i < kOwnKeys; ++i) keys.own[i] = key_at(block, own_row(i));
  }

  __device__ __forceinline__ const T* row_of(int32_t key) const {
    return p_.k.template row<const T>(work_.batch, work_.kv_head, max(key, 0));
  }

  __device__ __forceinline__ void load_block(int block, const Keys& keys) {
    const int stage = block % L::kStages;
    shared_.waits.await(shared_.k_empty[stage], block / L::kStages % 2 ^ 1);
    // Two blocks back is over for all, and four blocks back also for warpgroup 2.
    if (thread() % kLanes == 0) {
#pragma unroll
      for (int i = 0; i < kOwnKeys; ++i)
        shared_.keys[block % L::kListSlots][own_row(i)] = keys.own[i];
      arrive(shared_.k_full[stage]);
    }
#pragma unroll
    for (int i = 0; i < kOwnKeys; ++i) {
      copy_row<L::kKeys>(shared_.k[stage], row_of(keys.own[i]), p_.sizes.head_dim, own_row(i),
                         keys.own[i] >= 0);
    }
    const int32_t tail = keys.of_tail();
    copy_tail(shared_.k_tail, row_of(tail), thread() / kTailLanes, stage, tail >= 0);
    mma::arrive_when_copied(shared_.k_full[stage]);
  }

  const device::BackwardParams& p_;
  const LatentBackwardWork& work_;
  const device::KeyList& list_;
  LatentBackwardShared& shared_;
};

}  // namespace keyhole::sm90
