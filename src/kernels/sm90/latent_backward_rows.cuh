// src/kernels/sm90/latent_backward_rows.cuh
// A warpgroup with 64 heads of the backward pass in latent form: scores, weights and dq.
#pragma once

#include "kernels/device/math.cuh"
#include "kernels/device/params.h"
#include "kernels/device/rows.cuh"
#include "kernels/mma/ptx.cuh"
#include "kernels/sm90/latent_backward_shared.cuh"
#include "kernels/sm90/transpose.cuh"

namespace keyhole::sm90 {

// kOwn: 0 or 1, the warpgroup.
template <class T, int kOwn>
class LatentBackwardRows {
  using L = LatentBackward;
  using Rule = SoftmaxRule<device::FastMath, Bend::none>;
  static constexpr int kPanelBytes = L::kKeys * 128;  // of k
  static constexpr uint32_t kOthersBytes = sizeof(uint4[4][kWarpgroup]);
  static constexpr uint32_t kWeightBytes = 32 * 2 * 16;  // that a warp stores in the other CTA

 public:
  __device__ LatentBackwardRows(const device::BackwardParams& p, const LatentBackwardWork& work,
                                LatentBackwardShared& shared)
      : p_(p), work_(work), shared_(shared) {
    const int row = int(threadIdx.x) % kWarpgroup + L::kRowHeads * kOwn;
    if (int(threadIdx.x) % kWarpgroup >= L::kRowHeads) return;
    float2 numbers = {-INFINITY, 0};  // weights of 0
    if (row < work.num_heads) {
      const int64_t place =
          (int64_t{work.batch} * p.sizes.heads + work.first_head + row) * p.sizes.q_len + work.query;
      numbers = {-p.lse2[place], p.delta[place]};
    }
    shared.rows[row] = numbers;
  }

  __device__ __forceinline__ void run(int num_blocks) {
#pragma unroll
    for (int i = 0; i < 64; ++i) dq_[0][i] = dq_[1][i] = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) tail_[i] = 0;
    is_ready(dq_[0]), is_ready(dq_[1]), is_ready(tail_);
    if (num_blocks > 0) follow(num_blocks);
   
    is_ready(dq_[0]), is_ready(dq_[1]), is_ready(tail_);
    store();
  }

 private:
  // Always computed anew, from thread_index(): the accumulators leave few registers.
  static __device__ __forceinline__ uint32_t thread() {
    return device::thread_index() % kWarpgroup;
  }
  static __device__ __forceinline__ uint32_t lane() { return device::thread_index() % 32; }
  static __device__ __forceinline__ uint32_t own_row(uint32_t half) {
    const uint32_t index = thread();
    return L::kRowHeads * kOwn + index / 32 * 16 + index % 32 / 4 + 8 * half;
  }
  // An address in the other CTA.
  __device__ __forceinline__ uint32_t there(const void* shared) const {
    return address_in(smem_address(shared), work_.rank ^ 1);
  }

  __device__ __forceinline__ void follow(int num_blocks) {
    meet<1 + kOwn, kWarpgroup>();  // the numbers of its rows are there
    shared_.waits.await(shared_.q_full, 0);
    begin_scores(0);
    await_products<0>();
    is_ready(s_), is_ready(dp_);
#pragma unroll 1
    for (int block = 0; block + 1 < num_blocks; ++block) {
      begin_dq(block);
      begin_scores(block + 1);
      await_products<1>();
      arrive_as_warp(shared_.k_empty[block % L::kStages]);
      await_products<0>();
      is_ready(s_), is_ready(dp_), is_ready(dq_[0]), is_ready(dq_[1]), is_ready(tail_);
    }
    begin_dq(num_blocks - 1);
    await_products<0>();
    is_ready(dq_[0]), is_ready(dq_[1]), is_ready(tail_);
  }

  // From the products of a block, which are complete.
  __device__ __forceinline__ void begin_dq(int block) {
    uint32_t weights[2][4];
    make_weights(block, weights);
    share_weights(block, weights);
    shared_.waits.await(shared_.weights_full[block % 2], block / 2 % 2);
    publish_stores();
    begin_products();
    add_to_dq(block);
    commit_products();
  }

  // Starts the products over this CTA's columns.
  __device__ __forceinline__ void begin_scores(int block) {
    const int stage = block % L::kStages;
    if (threadIdx.x % kWarpgroup == 0) arrive_and_expect(shared_.others_full[kOwn], kOthersBytes);
    shared_.waits.await(shared_.k_full[stage], block / L::kStages % 2);
    publish_stores();
    begin_products();
    const uint64_t here = shared_operand(shared_);
    const int rows_at = kOwn * L::kRowHeads * 128;
    const int keys_at = stage * int(sizeof(shared_.k[0]));
#pragma unroll
    for (int panel = 0; panel < L::kPanels; ++panel) {
      const uint64_t q = further(here, offset_of(shared_, shared_.q[panel]) + rows_at);
      const uint64_t k = further(here, offset_of(shared_, shared_.k[0][panel]) + keys_at);
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        if (panel == 0 && step == 0) {
          Product<T>::template of_shared<true, false, false>(s_, q, k);
        } else {
          Product<T>::template of_shared<false, false, false>(s_, further(q, 32 * step),
                                                              further(k, 32 * step));
        }
      }
    }
    const uint64_t q = further(here, offset_of(shared_, shared_.q_tail) + 64 * kOwn);
    const uint64_t k = further(here, offset_of(shared_, shared_.k_tail) + 64 * stage);
#pragma unroll
    for (int step = 0; step < L::kTailColumns / 16; ++step) {
      Product<T>::template of_shared<false, false, false>(s_, further(q, 32 * step),
                                                          further(k, 32 * step));
    }
#pragma unroll
    for (int panel = 0; panel < L::kPanels; ++panel) {
      const uint64_t dout = further(here, offset_of(shared_, shared_.dout[panel]) + rows_at);
      const uint64_t v = further(here, offset_of(shared_, shared_.k[0][panel]) + keys_at);
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        if (panel == 0 && step == 0) {
          Product<T>::template of_shared<true, false, false>(dp_, dout, v);
        } else {
          Product<T>::template of_shared<false, false, false>(dp_, further(dout, 32 * step),
                                                              further(v, 32 * step));
        }
      }
    }
    commit_products();
  }

  // Four sums of a thread, of columns 8 j ...: for both of its rows.
  static __device__ __forceinline__ uint4 four(const float (&sum)[16], int j) {
    return {__float_as_uint(sum[4 * j]), __float_as_uint(sum[4 * j + 1]),
            __float_as_uint(sum[4 * j + 2]), __float_as_uint(sum[4 * j + 3])};
  }

  // Exchanges sums with the other CTA, and makes p and ds of its first 16 keys. Out: lane 4 g + m has 16
  // bytes of rows g and g + 8: p of 8 keys, p of the others, ds of 8 keys, ds of the others.
  __device__ __forceinline__ void make_weights(int block, uint32_t (&words)[2][4]) {
    constexpr uint32_t kStep = sizeof(shared_.others[0][0]);
    const uint4* const slot = &shared_.others[kOwn][0][thread()];
    const uint32_t to = there(slot), barrier = there(&shared_.others_full[kOwn]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      store_there(to + i * kStep, barrier, four(s_, 2 + i));
      store_there(to + (2 + i) * kStep, barrier, four(dp_, 2 + i));
    }
    Rule rule;
    static_cast<RuleNumbers<float>&>(rule) = p_.rule;
    const float2 low = shared_.rows[own_row(0)], high = shared_.rows[own_row(1)];
    shared_.waits.await(shared_.others_full[kOwn], block % 2);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 s_own = four(s_, i), dp_own = four(dp_, i);
      const uint4 s_other = device::load_shared_vector(smem_address(slot) + i * kStep);
      const uint4 dp_other = device::load_shared_vector(smem_address(slot) + (2 + i) * kStep);
      const int2 keys = *reinterpret_cast<const int2*>(
          &shared_.keys[block % L::kListSlots][8 * i + lane() % 4 * 2]);
      const auto weight = [&](uint32_t own, uint32_t other, int32_t key, const float2& row) {
        const float product = __uint_as_float(own) + __uint_as_float(other);
        return key >= 0 ? rule.weight_of_bent(product, row.x) : 0.f;
      };
      const auto gradient = [&](float p, uint32_t own, uint32_t other, int32_t key,
                                const float2& row) {
        const float dp = __uint_as_float(own) + __uint_as_float(other);
        return key >= 0 ? rule.slope(p) * (dp - row.y) * rule.scale : 0.f;
      };
      const float p[4] = {
          weight(s_own.x, s_other.x, keys.x, low), weight(s_own.y, s_other.y, keys.y, low),
          weight(s_own.z, s_other.z, keys.x, high), weight(s_own.w, s_other.w, keys.y, high)};
      words[0][i] = mma::Element<T>::pack(p[0], p[1]);
      words[1][i] = mma::Element<T>::pack(p[2], p[3]);
      words[0][2 + i] =
          mma::Element<T>::pack(gradient(p[0], dp_own.x, dp_other.x, keys.x, low),
                                gradient(p[1], dp_own.y, dp_other.y, keys.y, low));
      words[1][2 + i] =
          mma::Element<T>::pack(gradient(p[2], dp_own.z, dp_other.z, keys.x, high),
                                gradient(p[3], dp_own.w, dp_other.w, keys.y, high));
    }
    transpose_four<1>(words[0]);
    transpose_four<1>(words[1]);
  }

  // To both CTAs, once neither needs what was there two blocks ago.
  __device__ __forceinline__ void share_weights(int block, const uint32_t (&words)[2][4]) {
    const int side = block % 2;
    const uint32_t barrier = there(&shared_.weights_full[side]);
    shared_.waits.await(shared_.weights_empty[side], block / 2 % 2 ^ 1);
    // Chunks 0 to 3 have p, 4 to 7 ds. These 16 keys are the first ones here, the last ones there.
    const uint32_t chunk = lane() % 4 / 2 * 4 + lane() % 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t row = own_row(uint32_t(half));
      const unsigned char* const rows = shared_.weights[side] + row * 128;
      const uint4 vector = {words[half][0], words[half][1], words[half][2], words[half][3]};
      device::store_shared_vector(smem_address(rows + (chunk ^ row % 8) * 16), vector);
      store_there(there(rows + (chunk ^ row % 8 ^ 2) * 16), barrier, vector);
    }
    publish_stores();
    __syncwarp();
    if (lane() == 0) arrive_and_expect(shared_.weights_full[side], kWeightBytes);
  }

  __device__ __forceinline__ void add_to_dq(int block) {
    const int stage = block % L::kStages;
    const uint64_t here = shared_operand(shared_);
    const uint64_t ds =
        further(here, offset_of(shared_, shared_.weights[0]) +
                          block % 2 * int(sizeof(shared_.weights[0])) +
                          kOwn * L::kRowHeads * 128 + 64);
    const uint64_t k = further(in_panels(here, kPanelBytes),
                               offset_of(shared_, shared_.k[0][0]) + stage * int(sizeof(shared_.k[0])));
    const uint64_t tail = further(here, offset_of(shared_, shared_.k_tail) + 64 * stage);
#pragma unroll
    for (int step = 0; step < L::kKeys / 16; ++step) {
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        Product<T>::template of_shared<false, false, true>(
            dq_[pair], further(ds, 32 * step),
            further(k, 2 * pair * kPanelBytes + 16 * 128 * step));
      }
      Product<T>::template of_shared<false, false, true>(tail_, further(ds, 32 * step),
                                                         further(tail, 16 * 128 * step));
    }
  }

  __device__ __forceinline__ void store() const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = int(own_row(uint32_t(half)));
      if (row >= work_.num_heads) continue;
      const device::GradientRow<T> to = device::gradient_row<T>(
          p_.dq, p_.sums.dq, p_.found_nonfinite, p_.sizes.heads, p_.sizes.q_len, p_.sizes.head_dim,
          work_.batch, work_.first_head + row, work_.query);
#pragma unroll
      for (int j = 0; j < 32; ++j) {
        const int col = work_.first_column() + L::column_of(j / 8, j % 8) + int(lane() % 4 * 2);
        const int at = j % 16 * 4 + 2 * half;
        put_two(to, col, dq_[j / 16][at], dq_[j / 16][at + 1]);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int col = work_.first_tail_column() + 8 * j + int(lane() % 4 * 2);
        put_two(to, col, tail_[4 * j + 2 * half], tail_[4 * j + 2 * half + 1]);
      }
    }
  }
  static __device__ __forceinline__ void put_two(const device::GradientRow<T>& to, int col, float a,
                                                 float b) {
    if (to.sum != nullptr) {
      to.put(col, a), to.put(col + 1, b);
    } else if (col < to.cols) {
      const uint32_t two = mma::Element<T>::pack(a, b);
      *reinterpret_cast<uint32_t*>(to.to + col) = two;
      if (device::has_nonfinite<T>(two)) *to.found = 1;
    }
  }

  const device::BackwardParams& p_;
  const LatentBackwardWork& work_;
  LatentBackwardShared& shared_;
  float dq_[2][64], tail_[16];  // dq: two panels each. An instruction of 256 columns would need
                               // more registers than a thread has before setmaxnreg
  float s_[16], dp_[16];
};

}  // namespace keyhole::sm90
