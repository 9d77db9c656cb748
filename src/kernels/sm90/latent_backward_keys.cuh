// src/kernels/sm90/latent_backward_keys.cuh
// The warpgroup of dk and dv in the backward pass in latent form. Its products have columns of q
// and dout as rows: for 64 of them and the 32 keys of a block, over all heads.
#pragma once

#include "kernels/device/params.h"
#include "kernels/mma/ptx.cuh"
#include "kernels/sm90/latent_backward_shared.cuh"
#include "kernels/sm90/transpose.cuh"

namespace keyhole::sm90 {

template <class T>
class LatentBackwardKeys {
  using L = LatentBackward;

 public:
  __device__ LatentBackwardKeys(const device::BackwardParams& p, const LatentBackwardWork& work,
                                LatentBackwardShared& shared)
      : p_(p), work_(work), shared_(shared) {
    const int64_t first_key =
        (int64_t{work.batch} * p.sizes.kv_heads + work.kv_head) * p.sizes.k_len;
    dk_ = p.sums.dk + first_key * p.sizes.head_dim;
    dv_ = p.sums.dv + first_key * p.sizes.v_head_dim;
  }

  __device__ __forceinline__ void run(int num_blocks) {
    if (work_.row_groups() == 2) {
      run_blocks<2>(num_blocks);
    } else {
      run_blocks<1>(num_blocks);
    }
  }

 private:
  using Pair = float[2][16];  // sums of two neighbouring panels

  // Always computed anew: there are few registers.
  static __device__ __forceinline__ int lane() { return int(device::thread_index() % 32); }
  static __device__ __forceinline__ int warp() { return int(device::thread_index() / 32 % 4); }

  template <int kGroups>
  __device__ __forceinline__ void run_blocks(int num_blocks) {
    shared_.waits.await(shared_.q_full, 0);
#pragma unroll 1
    for (int block = 0; block < num_blocks; ++block) {
      const int side = block % 2;
      shared_.waits.await(shared_.weights_ready[side], block / 2 % 2);
      const int32_t* const keys = shared_.keys[block % L::kListSlots];
      const int p = offset_of(shared_, shared_.weights[0]) + side * int(sizeof(shared_.weights[0]));
      const int ds = p + 64;
      // One pair of panels is added while the next one is multiplied.
      Pair sums[2];
      begin_pair<kGroups>(sums[0], shared_.dout, 0, p);
      begin_pair<kGroups>(sums[1], shared_.dout, 1, p);
      await_products<1>();
      add_pair(sums[0], keys, dv_, p_.sizes.v_head_dim, 0);
      begin_pair<kGroups>(sums[0], shared_.q, 0, ds);
      await_products<1>();
      add_pair(sums[1], keys, dv_, p_.sizes.v_head_dim, 1);
      begin_pair<kGroups>(sums[1], shared_.q, 1, ds);
      await_products<1>();
      add_pair(sums[0], keys, dk_, p_.sizes.head_dim, 0);
      begin_tail<kGroups>(sums[0][0], ds);
      await_products<1>();
      add_pair(sums[1], keys, dk_, p_.sizes.head_dim, 1);
      const int2 tail_keys[2] = {two_keys(keys, tail_key(0)), two_keys(keys, tail_key(1))};
      await_products<0>();
      arrive_as_warp(shared_.weights_empty[side]);  // and the slot of `keys` may be written
      arrive_there_as_warp(address_in(smem_address(&shared_.weights_empty[side]), work_.rank ^ 1));
      add_tail(sums[0][0], tail_keys);
    }
  }

  template <int kGroups>
  __device__ __forceinline__ void multiply(float (&sum)[16], uint64_t left, uint64_t right) {
#pragma unroll
    for (int step = 0; step < 4 * kGroups; ++step) {
      if (step == 0) {
        Product<T>::template of_shared<true, true, true>(sum, left, right);
      } else {
        Product<T>::template of_shared<false, true, true>(sum, further(left, 16 * 128 * step),
                                                          further(right, 16 * 128 * step));
      }
    }
  }
  // Starts the sums of a pair of panels. weights: where p or ds are in shared memory.
  template <int kGroups>
  __device__ __forceinline__ void begin_pair(
      Pair& sums, const unsigned char (&rows)[L::kPanels][L::kHeads * 128], int pair, int weights) {
    const uint64_t here = shared_operand(shared_), right = further(here, weights);
    begin_products();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      multiply<kGroups>(sums[i], further(here, offset_of(shared_, rows[2 * pair + i])), right);
    }
    commit_products();
  }
  // The rest of the columns. Heads from 64 on are in the right half of the panel; a product takes
  // 64 columns from there, and the rows of the last 32 mean nothing.
  template <int kGroups>
  __device__ __forceinline__ void begin_tail(float (&sum)[16], int weights) {
    const uint64_t here = shared_operand(shared_);
    const uint64_t left = further(here, offset_of(shared_, shared_.q_tail));
    const uint64_t right = further(here, weights);
    begin_products();
#pragma unroll
    for (int step = 0; step < 4 * kGroups; ++step) {
      if (step == 0) {
        Product<T>::template of_shared<true, true, true>(sum, left, right);
      } else {
        Product<T>::template of_shared<false, true, true>(
            sum, further(left, step / 4 * 64 + step % 4 * 16 * 128),
            further(right, 16 * 128 * step));
      }
    }
    commit_products();
  }

  // Two neighbouring keys. Always loaded: kept, they and the addresses of their rows would need
  // more registers than there are.
  static __device__ __forceinline__ int2 two_keys(const int32_t* keys, int first) {
    int2 two;
    asm volatile("ld.volatile.shared.v2.b32 {%0, %1}, [%2];"
                 : "=r"(two.x), "=r"(two.y)
                 : "r"(smem_address(keys + first)));
    return two;
  }

  __device__ __forceinline__ void add(float* sums, int32_t cols, int32_t key, int32_t col,
                                      const uint32_t (&words)[4]) const {
    const float4 sum = four_floats(words);
    float* const to = sums + (int64_t{max(key, 0)} * cols + col);
    device::add_to_global(to, float2{sum.x, sum.y}, float2{sum.z, sum.w}, key >= 0 && col < cols);
  }

  // A warp has 32 neighbouring columns. Lanes exchange numbers so that each has four neighbouring
  // ones of a key: an instruction adds 128 bytes of four rows.
  __device__ __forceinline__ void add_pair(Pair& sums, const int32_t* keys, float* to, int32_t cols,
                                           int pair) const {
    is_ready(sums[0]), is_ready(sums[1]);
    const int32_t col =
        work_.first_column() + 128 * pair + 32 * warp() + lane() / 4 % 4 * 8 + lane() / 16 * 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int2 two = two_keys(keys, 8 * j + lane() % 4 * 2);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        uint32_t words[4] = {
            __float_as_uint(sums[0][4 * j + e]), __float_as_uint(sums[0][4 * j + 2 + e]),
            __float_as_uint(sums[1][4 * j + e]), __float_as_uint(sums[1][4 * j + 2 + e])};
        transpose_four<4>(words);
        add(to, cols, e == 0 ? two.x : two.y, col, words);
      }
    }
  }
  // Two warps have 16 neighbouring columns each: an instruction adds 64 bytes of eight rows.
  __device__ __forceinline__ void add_tail(float (&sum)[16], const int2 (&keys)[2]) const {
    is_ready(sum);
    if (warp() >= 2) return;
    const int32_t col =
        work_.first_tail_column() + 16 * warp() + lane() / 4 % 2 * 8 + lane() / 16 * 4;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        uint32_t words[4] = {__float_as_uint(sum[8 * j + e]), __float_as_uint(sum[8 * j + 2 + e]),
                             __float_as_uint(sum[8 * j + 4 + e]),
                             __float_as_uint(sum[8 * j + 6 + e])};
        transpose_four<4>(words);
        add(dk_, p_.sizes.head_dim, e == 0 ? keys[j].x : keys[j].y, col, words);
      }
    }
  }
  // Which two keys a lane adds to, of 16 keys of the tail.
  static __device__ __forceinline__ int tail_key(int j) {
    return 16 * j + lane() / 8 % 2 * 8 + lane() % 4 * 2;
  }

  const device::BackwardParams& p_;
  const LatentBackwardWork& work_;
  LatentBackwardShared& shared_;
  float *dk_, *dv_;  // sums of the kv head, row after row
};

}  // namespace keyhole::sm90
