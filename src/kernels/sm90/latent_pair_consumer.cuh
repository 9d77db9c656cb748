// src/kernels/sm90/latent_pair_consumer.cuh
// A consumer warpgroup of the pair form of attention in latent form: 64 heads.
#pragma once

#include "kernels/sm90/latent_pair_weights.cuh"

namespace keyhole::sm90 {

// The product of two packed 16-bit numbers with others.
template <class T>
__device__ __forceinline__ uint32_t multiply_two(uint32_t a, uint32_t b) {
  uint32_t product;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm volatile("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  } else {
    asm volatile("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  }
  return product;
}

template <class T>
class LatentPairConsumer {
  using L = LatentPair;

 public:
  // warpgroup: uniform.
  __device__ LatentPairConsumer(const LatentPairGrid& grid, LatentPairShared& shared, int warpgroup)
      : grid_(grid), shared_(shared), warpgroup_(warpgroup), weights_(shared, grid) {}

  __device__ __forceinline__ void run(const device::GatherForwardParams& p) {
#pragma unroll
    for (int i = 0; i < 128; ++i) out_[i] = 0;
    if (warpgroup_ == 1) arrive_at<2 * kWarpgroup>(L::kTurn);
    load_register_steps();
    shared_.await(shared_.q_full, 0);
    await_block(1);
    begin_scores(1);
    await_products<0>();
    is_ready(score_);

    step<false, true, true>(0);
    uint32_t place = 1;
#pragma unroll 1
    for (; place + 1 < num_blocks(); ++place) step<true, true, true>(place);
    // Every turn that was given has been taken.
    if (warpgroup_ == 0) meet_at<2 * kWarpgroup>(L::kTurn);
    step<true, true, false>(place);
    step<true, false, false>(place + 1);
    store(p, latent_pair_work(p.sizes, grid_));
  }

 private:
  // Always computed anew: the accumulators leave few registers.
  static __device__ __forceinline__ uint32_t lane() { return device::thread_index() % 32; }
  static __device__ __forceinline__ uint32_t stage_of(uint32_t place) { return place % L::kStages; }
  // Read from shared memory in every step: the accumulators leave few registers.
  __device__ __forceinline__ uint32_t num_blocks() const {
    return *static_cast<volatile uint32_t*>(&shared_.num_blocks);
  }
  // Where a place of the ring has its panels.
  __device__ __forceinline__ uint32_t panels_at(uint32_t place) const {
    return smem_address(shared_.k) + stage_of(place) * uint32_t(sizeof(shared_.k[0]));
  }

  // ---- products ----

  __device__ __forceinline__ void load_register_steps() {
    shared_.await(shared_.k_full[0], 0);
    const uint32_t panel = panels_at(0) + uint32_t(warpgroup_ * kLatentPanelBytes);
    const int row = int(device::thread_index() / 32 % 4 * 16 + lane() % 16);
#pragma unroll
    for (int i = 0; i < L::kRegisterSteps; ++i) {
      mma::load_matrices(q_[i], panel + chunk_in_panel(row, 2 * i + int(lane() / 16)));
    }
    __syncwarp();
    arrive_as_warp(shared_.k_empty[0]);
  }

  __device__ __forceinline__ void await_block(uint32_t place) const {
    shared_.await(shared_.k_full[stage_of(place)], place / L::kStages % 2);
    publish_stores();
  }

  // The products of q with the keys of a block, over this CTA's columns.
  __device__ __forceinline__ void begin_scores(uint32_t place) {
    const uint32_t stage = stage_of(place);
    const uint64_t q =
        operand(smem_address(shared_.q) + uint32_t(warpgroup_ * int(sizeof(shared_.q[0]))), 0);
    const uint64_t q_half = operand(smem_address(shared_.q_half) + uint32_t(64 * warpgroup_), 0);
    const uint64_t k = operand(panels_at(place), 0);
    const uint64_t tail =
        operand(smem_address(shared_.k_tail) + stage / 2 * kLatentPanelBytes + stage % 2 * 64, 0);
    begin_products();
#pragma unroll
    for (int panel = 0; panel < 3; ++panel) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int by = panel * kLatentPanelBytes + 32 * i;
        if (by == 0) {
          Product<T>::template of_shared<true, false, false>(score_, q, k);
        } else {
          Product<T>::template of_shared<false, false, false>(score_, further(q, by),
                                                              further(k, by));
        }
      }
    }
    const uint64_t last = further(k, 3 * kLatentPanelBytes);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      Product<T>::template of_shared<false, false, false>(score_, further(q_half, 32 * i),
                                                          further(last, 32 * i));
    }
#pragma unroll
    for (int i = 0; i < L::kRegisterSteps; ++i) {
      Product<T>::template of_register_rows<false>(
          score_, q_[i], i < 2 ? further(last, 64 + 32 * i) : further(tail, 32 * (i - 2)));
    }
    commit_products();
  }

  // `others`: weights of the fellow's keys, which are the second half of the rows of a block.
  __device__ __forceinline__ void begin_values(uint32_t place, const uint32_t (&others)[2][4]) {
    // Operands must not be written while products are in flight, and own weights are made
    // meanwhile: they are copied here, by an instruction that ptxas cannot leave out.
    uint32_t own[2][4];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      own[i / 4][i % 4] = multiply_two<T>(weights_.own()[i / 4][i % 4], grid_.one);
    }
    const uint64_t v = operand(panels_at(place), kLatentPanelBytes);
    begin_products();
#pragma unroll
    for (int i = 0; i < 2; ++i) Product<T>::of_registers(out_, own[i], further(v, i * 16 * 128));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      Product<T>::of_registers(out_, others[i], further(v, (2 + i) * 16 * 128));
    }
    commit_products();
  }

  // ---- steps ----

  // kAdds: adds the values of the block at `place`. kWeighs: makes the weights of the next one.
  // kBegins: computes the scores of the one after it.
  template <bool kAdds, bool kWeighs, bool kBegins>
  __device__ __forceinline__ void step(uint32_t place) {
    constexpr bool kTakesTurns = kAdds && kBegins;
    uint32_t others[2][4];
    // Read before the fellow may send the next ones: after these sums.
    if constexpr (kAdds) weights_.take_others(others, out_, !kWeighs);
    if constexpr (kBegins) await_block(place + 2);
    // Sent before products begin: a thread that sends waits for the link to the other CTA.
    if constexpr (kWeighs) weights_.begin(score_);
    // Warpgroups take turns at the tensor cores: else both multiply, and then both make weights.
    if constexpr (kTakesTurns) meet_at<2 * kWarpgroup>(L::kTurn + warpgroup_);
    if constexpr (kAdds) begin_values(place, others);
    if constexpr (kBegins) begin_scores(place + 2);
    if constexpr (kTakesTurns) arrive_at<2 * kWarpgroup>(L::kTurn + 1 - warpgroup_);
    if constexpr (kWeighs) weights_.add_sums(place % 2);
    if constexpr (kAdds) {
      await_products<kBegins ? 1 : 0>();
      arrive_as_warp(shared_.k_empty[stage_of(place)]);
    }
    if constexpr (kWeighs) {
      weights_.make(stage_of(place + 1), !kBegins);
      weights_.await_others(place % 2);
    }
    // Nothing may be in flight at the end of the loop: ptxas would serialise products.
    await_products<0>();
    is_ready(score_);
    is_ready(out_);
  }

  // ---- results ----

  __device__ __forceinline__ void store(const device::GatherForwardParams& p,
                                        const LatentWork& work) const {
    const uint32_t rank = cluster_rank();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = int(device::thread_index() / 32 * 16 + lane() / 4) + 8 * half;
      const float sum = weights_.sum(half);
      store_out<T>(p, work, row, int(rank) * L::kColumns, out_, half, sum);
      if (rank == 0) store_lse(p, work, row, weights_.base(half), sum);
    }
  }

  const LatentPairGrid& grid_;
  LatentPairShared& shared_;
  const int warpgroup_;
  LatentPairWeights<T> weights_;
  float out_[128], score_[32];
  uint32_t q_[L::kRegisterSteps][4];
};

}  // namespace keyhole::sm90
