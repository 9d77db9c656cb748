// src/kernels/sm90/latent_pair_exchange.cuh
// What a warp of the pair form of attention in latent form exchanges with its fellow in the other
// CTA (latent_pair_shared.cuh has the order). A thread gets what the same thread there holds.
#pragma once

#include "kernels/sm90/latent_pair_shared.cuh"

namespace keyhole::sm90 {

class LatentPairExchange {
  using L = LatentPair;
  static constexpr uint32_t kSumBytes = 4 * 32 * 16;              // of a warp
  static constexpr uint32_t kWeightBytes = 2 * 32 * 16 + 32 * 4;  // and the numbers of its rows

 public:
  __device__ explicit LatentPairExchange(LatentPairShared& shared)
      : shared_(shared), peer_(address_in(smem_address(&shared), cluster_rank() ^ 1)) {}

  // The sums of the fellow's keys: the second half of a block.
  __device__ __forceinline__ void send_sums(const float (&score)[32]) const {
    if (lane() == 0) arrive_and_expect(shared_.sums_full[warp()], kSumBytes);
    const uint32_t to = mma::opaque(there(shared_.sums) + warp() * kSumBytes + lane() * 16);
    const uint32_t barrier = there(shared_.sums_full) + warp() * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      store_there(to + uint32_t(i * 512), barrier,
                  uint4{__float_as_uint(score[16 + 4 * i]), __float_as_uint(score[17 + 4 * i]),
                        __float_as_uint(score[18 + 4 * i]), __float_as_uint(score[19 + 4 * i])});
    }
  }
  __device__ __forceinline__ void add_sums(float (&score)[16], uint32_t parity) const {
    shared_.await(shared_.sums_full[warp()], parity);
    const uint32_t from = smem_address(shared_.sums) + warp() * kSumBytes + lane() * 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 four = device::load_shared_vector(from + uint32_t(i * 512));
      score[4 * i] += __uint_as_float(four.x);
      score[4 * i + 1] += __uint_as_float(four.y);
      score[4 * i + 2] += __uint_as_float(four.z);
      score[4 * i + 3] += __uint_as_float(four.w);
    }
  }

  // Weights of the own keys, and of both rows the base they are taken against and the sum so far.
  __device__ __forceinline__ void send_weights(const uint32_t (&weights)[2][4],
                                               const float (&base)[2],
                                               const float (&sum)[2]) const {
    if (lane() == 0) arrive_and_expect(shared_.weights_full[warp()], kWeightBytes);
    const uint32_t to = there(shared_.weights) + warp() * 1024 + lane() * 16;
    const uint32_t barrier = there(shared_.weights_full) + warp() * 8;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      store_there(to + uint32_t(i * 512), barrier,
                  uint4{weights[i][0], weights[i][1], weights[i][2], weights[i][3]});
    }
    // A number by each of the four lanes of a row.
    const uint32_t which = lane() % 4;
    const float low = which == 0 ? base[0] : base[1], high = which == 2 ? sum[0] : sum[1];
    store_word_there(there(shared_.numbers) + device::thread_index() * 4, barrier,
                     __float_as_uint(which < 2 ? low : high));
  }
  __device__ __forceinline__ void await_weights(uint32_t parity) const {
    shared_.await(shared_.weights_full[warp()], parity);
  }
  __device__ __forceinline__ void read_weights(uint32_t (&weights)[2][4], float (&base)[2],
                                               float (&sum)[2]) const {
    const uint32_t from = smem_address(shared_.weights) + warp() * 1024 + lane() * 16;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 four = device::load_shared_vector(from + uint32_t(i * 512));
      weights[i][0] = four.x, weights[i][1] = four.y, weights[i][2] = four.z;
      weights[i][3] = four.w;
    }
    const uint4 numbers =
        device::load_shared_vector(smem_address(shared_.numbers) + device::thread_index() / 4 * 16);
    base[0] = __uint_as_float(numbers.x), base[1] = __uint_as_float(numbers.y);
    sum[0] = __uint_as_float(numbers.z), sum[1] = __uint_as_float(numbers.w);
  }

 private:
  // Always computed anew: the accumulators leave few registers.
  static __device__ __forceinline__ uint32_t lane() { return device::thread_index() % 32; }
  static __device__ __forceinline__ uint32_t warp() { return device::thread_index() / 32; }

  // Where the other CTA has what is at this address here.
  __device__ __forceinline__ uint32_t there(const void* address) const {
    return mma::opaque(peer_) + uint32_t(static_cast<const unsigned char*>(address) -
                                         reinterpret_cast<const unsigned char*>(&shared_));
  }

  LatentPairShared& shared_;
  const uint32_t peer_;  // where the other CTA has its LatentPairShared
};

}  // namespace keyhole::sm90
