// src/kernels/sm90/latent_forward_consumer.cuh
// A consumer warpgroup of attention in latent form.
#pragma once

#include "kernels/device/params.h"
#include "kernels/mma/ptx.cuh"
#include "kernels/sm90/latent_forward_shared.cuh"

namespace keyhole::sm90 {

// What a pass over the list is for.
//   weigh    weights against the maximum of the first block, as long as none exceeds its limit
//   maximum  if one does: the row maxima of all keys, and then
//   weigh_again
enum class LatentPass { weigh, maximum, weigh_again };

// kOwn: 0 or 1, the warpgroup: which block of a pair, and which half of the columns.
template <class T, int kOwn>
class LatentConsumer {
  static constexpr int kOther = 1 - kOwn;

 public:
  __device__ LatentConsumer(const device::GatherForwardParams& p, const LatentWork& work,
                            LatentShared& shared)
      : p_(p), work_(work), shared_(shared), factor_(p.sizes.scale * device::kLog2E) {}

  __device__ __forceinline__ void run(int num_pairs) {
    load_last_panel();
    weigh<LatentPass::weigh>(num_pairs);
    meet<kEndOfPass, kLatentThreads>();
    if (*static_cast<volatile int32_t*>(&shared_.is_over) != 0) {
      find_maximum(num_pairs);
      weigh<LatentPass::weigh_again>(num_pairs);
    }
    finish();
  }

 private:
  static __device__ __forceinline__ int lane() { return int(threadIdx.x) % 32; }
  static __device__ __forceinline__ int warp() { return int(threadIdx.x) / 32 % 4; }
  static __device__ __forceinline__ int own_row(int half) {
    return 16 * warp() + lane() / 4 + 8 * half;
  }
  // Where lane l finds, or puts, row l % 8 of matrix l / 8 of 16 columns in a panel.
  static __device__ __forceinline__ uint32_t matrix_at(const unsigned char* panel, int step) {
    const int row = 16 * warp() + lane() % 16, chunk = 2 * step + lane() / 16;
    return smem_address(panel) + uint32_t(row * 128 + ((chunk ^ row % 8) * 16));
  }

  __device__ __forceinline__ void load_last_panel() {
    shared_.waits.await(shared_.q_full, 0);
    publish_stores();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      mma::load_matrices(last_[step], matrix_at(shared_.weights[kOwn], step));
    }
  }

  // ---- scores ----

  __device__ __forceinline__ void await_half(int side, int half) {
    shared_.waits.await(shared_.k_full[side][half], num_pairs_ % 2);
    publish_stores();
  }

  // The products of the keys of the own block with q, over the columns of one half.
  template <int kHalf, bool kBegins>
  __device__ __forceinline__ void multiply_half(float (&score)[32]) {
    constexpr int kFirst = kHalf == 0 ? 0 : kLatentHalf;
    constexpr int kEnd = kHalf == 0 ? kLatentHalf : kLatentValuePanels;
#pragma unroll
    for (int panel = kFirst; panel < kEnd; ++panel) {
      const uint64_t left = operand(smem_address(shared_.q[panel]), 0);
      const uint64_t right = operand(smem_address(shared_.k[kOwn][panel]), 0);
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        if (kBegins && panel == kFirst && step == 0) {
          Product<T>::template of_shared<true, false, false>(score, left, right);
        } else {
          Product<T>::template of_shared<false, false, false>(score, further(left, 32 * step),
                                                              further(right, 32 * step));
        }
      }
    }
    if constexpr (kHalf == 1) {
      const uint64_t right = operand(smem_address(shared_.k[kOwn][kLatentValuePanels]), 0);
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        Product<T>::template of_register_rows<false>(score, last_[step], further(right, 32 * step));
      }
    }
  }

  __device__ __forceinline__ void multiply_keys(float (&score)[32]) {
    await_half(kOwn, kOwn);
    begin_products();
    multiply_half<kOwn, true>(score);
    await_half(kOwn, kOther);
    begin_products();
    multiply_half<kOther, false>(score);
    commit_products();
    await_products<0>();
    is_ready(score);
    arrive_as_warp(shared_.k_empty[kOwn][kOther]);
  }

  __device__ __forceinline__ void mask(float (&score)[32]) const {
    mask_scores(score, factor_, *static_cast<volatile uint64_t*>(&shared_.there[kOwn].all));
  }
  // Subtracting an infinite maximum would make NaN.
  static __device__ __forceinline__ float base_of(float top) {
    return fabsf(top) < INFINITY ? top : 0.f;
  }

  // Both warpgroups take the maxima of the first block.
  __device__ __forceinline__ void share_first_maximum(const float (&score)[32]) {
    if constexpr (kOwn == 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float top = max_of_row(score, half);
        if (lane() % 4 == 0) shared_.row_max[0][own_row(half)] = top;
      }
    }
    meet<kRowMaximum, 2 * kWarpgroup>();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float top = shared_.row_max[0][own_row(half)];
      base_[half] = top == -INFINITY ? kNoScores : base_of(top);
    }
  }

  // ---- weights ----

  __device__ __forceinline__ void make_weights(const float (&score)[32],
                                               uint32_t (&weights)[4][4]) {
    float total[2];
    weigh_scores<T>(score, base_, total, weights);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      is_over_ = is_over_ || !is_within<T>(total[half]);
      sum_[half] += total[half];
    }
  }

  __device__ __forceinline__ void share_weights(const uint32_t (&weights)[4][4]) {
    shared_.waits.await(shared_.weights_empty[kOwn], num_weighed_ % 2 ^ 1);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      store_matrices(matrix_at(shared_.weights[kOwn], step), weights[step]);
    }
    publish_stores();
    arrive(shared_.weights_full[kOwn]);
  }

  // The values of a block, in the own half of the columns.
  __device__ __forceinline__ uint64_t values(int side) const {
    return operand(smem_address(shared_.k[side][kOwn * kLatentHalf]), kLatentPanelBytes);
  }

  __device__ __forceinline__ void add_values(const uint32_t (&weights)[4][4]) {
    begin_products();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      Product<T>::of_registers(out_, weights[step], further(values(kOwn), 16 * 128 * step));
    }
    commit_products();
    share_weights(weights);
    shared_.waits.await(shared_.weights_full[kOther], num_weighed_ % 2);
    await_half(kOther, kOwn);
    const uint64_t others = operand(smem_address(shared_.weights[kOther]), 0);
    begin_products();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      Product<T>::template of_shared<false, false, true>(out_, further(others, 32 * step),
                                                         further(values(kOther), 16 * 128 * step));
    }
    commit_products();
    await_products<1>();
    arrive_as_warp(shared_.k_empty[kOwn][kOwn]);
    await_products<0>();
    arrive_as_warp(shared_.k_empty[kOther][kOwn]);
    arrive_as_warp(shared_.weights_empty[kOther]);
    is_ready(out_);
  }

  template <LatentPass kPass>
  __device__ __forceinline__ void weigh(int num_pairs) {
#pragma unroll
    for (int i = 0; i < 128; ++i) out_[i] = 0;
    sum_[0] = sum_[1] = 0;
    is_over_ = false;
    for (int pair = 0; pair < num_pairs; ++pair) {
      float score[32];
      uint32_t weights[4][4];
      multiply_keys(score);
      mask(score);
      if (kPass == LatentPass::weigh && pair == 0) share_first_maximum(score);
      make_weights(score, weights);
      add_values(weights);
      ++num_pairs_, ++num_weighed_;
    }
    if (kPass == LatentPass::weigh && is_over_) shared_.is_over = 1;
  }

  __device__ __forceinline__ void find_maximum(int num_pairs) {
    float top[2] = {-INFINITY, -INFINITY};
    for (int pair = 0; pair < num_pairs; ++pair) {
      float score[32];
      multiply_keys(score);
      mask(score);
      top[0] = fmaxf(top[0], max_of_row(score, 0));
      top[1] = fmaxf(top[1], max_of_row(score, 1));
      arrive_as_warp(shared_.k_empty[kOwn][kOwn]);
      // The half that this warpgroup would have read: it is given back once it is there.
      await_half(kOther, kOwn);
      arrive_as_warp(shared_.k_empty[kOther][kOwn]);
      ++num_pairs_;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (lane() % 4 == 0) shared_.row_max[kOwn][own_row(half)] = top[half];
    }
    meet<kRowMaximum, 2 * kWarpgroup>();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = own_row(half);
      base_[half] = base_of(fmaxf(shared_.row_max[0][row], shared_.row_max[1][row]));
    }
  }

  // ---- results ----

  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = sum_of_row(sum_[half]);
      if (lane() % 4 == 0) shared_.row_sum[kOwn][own_row(half)] = sum;
    }
    meet<kRowSums, 2 * kWarpgroup>();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = own_row(half);
      const float sum = shared_.row_sum[0][row] + shared_.row_sum[1][row];
      store_out<T>(p_, work_, row, kOwn * 256, out_, half, sum);
      if (kOwn == 0) store_lse(p_, work_, row, base_[half], sum);
    }
  }

  const device::GatherForwardParams& p_;
  const LatentWork& work_;
  LatentShared& shared_;
  const float factor_;
  uint32_t last_[4][4];  // the last panel of q
  float out_[128], sum_[2] = {0, 0}, base_[2] = {0, 0};
  bool is_over_ = false;
  uint32_t num_pairs_ = 0, num_weighed_ = 0;  // of all passes
};

}  // namespace keyhole::sm90
