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
  static constexpr uint32_t kOthersStep = sizeof(uint4[kWarpgroup]), kOthersBytes = 2 * kOthersStep;
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
          (int64_t{work.batch} * p.sizes.heads + work.first_head + row) * p.sizes.q_len +
          work.query;
      numbers = {-p.lse2[place], p.delta[place]};
    }
    shared.rows[row] = numbers;
  }

  __device__ __forceinline__ void run(int num_blocks) {
#pragma unroll
    for (int i = 0; i < 64; ++i) dq_[0][i] = dq_[1][i] = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) tail_[i] = 0;
    // Zeros that would be written later, between products, would serialise these.
    is_ready(dq_[0]), is_ready(dq_[1]), is_ready(tail_);
    if (num_blocks > 0) follow(num_blocks);
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
    make_p(0);
#pragma unroll 1
    for (int block = 0; block + 1 < num_blocks; ++block) {
      make_ds(block);
      share_weights(block);
      begin_scores(block + 1);  // while the weights of the other CTA arrive
      begin_dq(block);
      make_p(block + 1);
    }
    make_ds(num_blocks - 1);
    share_weights(num_blocks - 1);
    begin_dq(num_blocks - 1);
    await_products<0>();
    is_ready(dq_[0]), is_ready(dq_[1]), is_ready(tail_);
  }

  // Starts q . k over this CTA's columns.
  __device__ __forceinline__ void begin_scores(int block) {
    const int stage = block % L::kStages;
    shared_.waits.await(shared_.k_full[stage], block / L::kStages % 2);
    publish_stores();
    const uint64_t here = shared_operand(shared_);
    begin_products();
    multiply(offset_of(shared_, shared_.q[0]), stage);
    const uint64_t q = further(here, offset_of(shared_, shared_.q_tail) + 64 * kOwn);
    const uint64_t k = further(here, offset_of(shared_, shared_.k_tail) + 64 * stage);
#pragma unroll
    for (int step = 0; step < L::kTailColumns / 16; ++step) {
      Product<T>::template of_shared<false, false, false>(sum_, further(q, 32 * step),
                                                          further(k, 32 * step));
    }
    commit_products();
  }
  // Starts dout . v over this CTA's columns.
  __device__ __forceinline__ void begin_slopes(int block) {
    begin_products();
    multiply(offset_of(shared_, shared_.dout[0]), block % L::kStages);
    commit_products();
  }
  // The products of rows in panels with the keys of a stage.
  __device__ __forceinline__ void multiply(int panels, int stage) {
    const uint64_t here = shared_operand(shared_);
    const uint64_t rows = further(here, panels + kOwn * L::kRowHeads * 128);
    const uint64_t keys =
        further(here, offset_of(shared_, shared_.k[0][0]) + stage * int(sizeof(shared_.k[0])));
#pragma unroll
    for (int panel = 0; panel < L::kPanels; ++panel) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        if (panel == 0 && step == 0) {
          Product<T>::template of_shared<true, false, false>(sum_, rows, keys);
        } else {
          Product<T>::template of_shared<false, false, false>(
              sum_, further(rows, panel * L::kHeads * 128 + 32 * step),
              further(keys, panel * kPanelBytes + 32 * step));
        }
      }
    }
  }

  // Four sums of a thread, of columns 8 j ...: for both of its rows.
  static __device__ __forceinline__ uint4 four(const float (&sum)[16], int j) {
    return {__float_as_uint(sum[4 * j]), __float_as_uint(sum[4 * j + 1]),
            __float_as_uint(sum[4 * j + 2]), __float_as_uint(sum[4 * j + 3])};
  }

  // Where this thread finds the sums of its fellow in the other CTA, and where that one does.
  __device__ __forceinline__ const uint4* others(int product) const {
    return &shared_.others[kOwn][product][0][thread()];
  }
  // Sends the sums of the keys whose weights the other CTA makes.
  __device__ __forceinline__ void send(int product) const {
    if (thread() == 0) arrive_and_expect(shared_.others_full[kOwn][product], kOthersBytes);
    const uint32_t to = there(others(product));
    const uint32_t barrier = there(&shared_.others_full[kOwn][product]);
    store_there(to, barrier, four(sum_, 2));
    store_there(to + kOthersStep, barrier, four(sum_, 3));
  }
  // Keys 8 i + 2 (lane % 4) and the next one.
  __device__ __forceinline__ int2 keys_of(int block, int i) const {
    return *reinterpret_cast<const int2*>(
        &shared_.keys[block % L::kListSlots][8 * i + int(lane() % 4 * 2)]);
  }

  // p of the first 16 keys, once q . k is complete. The products dout . v take place in the same
  // registers meanwhile; they are complete afterwards, and so is dq of the block before.
  __device__ __forceinline__ void make_p(int block) {
    if (block > 0) {
      await_products<1>();  // dq may take longer
    } else {
      await_products<0>();
    }
    is_ready(sum_);
    send(0);
#pragma unroll
    for (int i = 0; i < 8; ++i) p_of_[i] = sum_[i];
    is_ready(p_of_);  // copies, not the accumulators
    begin_slopes(block);
    await_products<1>();
    is_ready(dq_[0]), is_ready(dq_[1]), is_ready(tail_);
    if (block > 0) arrive_as_warp(shared_.k_empty[(block - 1) % L::kStages]);
    const float low = shared_.rows[own_row(0)].x, high = shared_.rows[own_row(1)].x;
    const Rule rule = this->rule();
    shared_.waits.await(shared_.others_full[kOwn][0], block % 2);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 other = device::load_shared_vector(smem_address(others(0)) + i * kOthersStep);
      const int2 keys = keys_of(block, i);
      const auto weight = [&](float own, uint32_t other, int32_t key, float minus_lse2) {
        return key >= 0 ? rule.weight_of_bent(own + __uint_as_float(other), minus_lse2) : 0.f;
      };
      p_of_[4 * i] = weight(p_of_[4 * i], other.x, keys.x, low);
      p_of_[4 * i + 1] = weight(p_of_[4 * i + 1], other.y, keys.y, low);
      p_of_[4 * i + 2] = weight(p_of_[4 * i + 2], other.z, keys.x, high);
      p_of_[4 * i + 3] = weight(p_of_[4 * i + 3], other.w, keys.y, high);
    }
    await_products<0>();
    is_ready(sum_);
    send(1);
  }

  // Afterwards lane 4 g + m has 16 bytes of rows g and g + 8: p of 8 keys, p of the others, ds of 8
  // keys, ds of the others.
  __device__ __forceinline__ void make_ds(int block) {
    const float low = shared_.rows[own_row(0)].y, high = shared_.rows[own_row(1)].y;
    const Rule rule = this->rule();
    shared_.waits.await(shared_.others_full[kOwn][1], block % 2);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 other = device::load_shared_vector(smem_address(others(1)) + i * kOthersStep);
      const int2 keys = keys_of(block, i);
      const auto gradient = [&](int at, uint32_t other, int32_t key, float delta) {
        const float dp = sum_[4 * i + at] + __uint_as_float(other);
        return key >= 0 ? rule.slope(p_of_[4 * i + at]) * (dp - delta) * rule.scale : 0.f;
      };
      const float ds[4] = {gradient(0, other.x, keys.x, low), gradient(1, other.y, keys.y, low),
                           gradient(2, other.z, keys.x, high), gradient(3, other.w, keys.y, high)};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        words_[half][i] =
            mma::Element<T>::pack(p_of_[4 * i + 2 * half], p_of_[4 * i + 2 * half + 1]);
        words_[half][2 + i] = mma::Element<T>::pack(ds[2 * half], ds[2 * half + 1]);
      }
    }
    transpose_four<1>(words_[0]);
    transpose_four<1>(words_[1]);
  }

  __device__ __forceinline__ Rule rule() const {
    Rule rule;
    static_cast<RuleNumbers<float>&>(rule) = p_.rule;
    return rule;
  }

  // To both CTAs, once neither needs what was there two blocks ago.
  __device__ __forceinline__ void share_weights(int block) {
    const int side = block % 2;
    const uint32_t barrier = there(&shared_.weights_full[side][kOwn]);
    shared_.waits.await(shared_.weights_empty[side], block / 2 % 2 ^ 1);
    // Chunks 0 to 3 have p, 4 to 7 ds. These 16 keys are the first ones here, the last ones there.
    const uint32_t chunk = lane() % 4 / 2 * 4 + lane() % 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t row = own_row(uint32_t(half));
      const unsigned char* const rows = shared_.weights[side] + row * 128;
      const uint4 vector = {words_[half][0], words_[half][1], words_[half][2], words_[half][3]};
      device::store_shared_vector(smem_address(rows + (chunk ^ row % 8) * 16), vector);
      store_there(there(rows + (chunk ^ row % 8 ^ 2) * 16), barrier, vector);
    }
    __syncwarp();
    if (lane() == 0) arrive_and_expect(shared_.weights_full[side][kOwn], kWeightBytes);
  }

  __device__ __forceinline__ void begin_dq(int block) {
    const int stage = block % L::kStages, side = block % 2;
    shared_.waits.await(shared_.weights_full[side][kOwn], block / 2 % 2);
    publish_stores();  // for warpgroup 2 too, whose additions such a fence would wait for
    arrive_as_warp(shared_.weights_ready[side]);
    begin_products();
    const uint64_t here = shared_operand(shared_);
    const uint64_t ds =
        further(here, offset_of(shared_, shared_.weights[0]) +
                          side * int(sizeof(shared_.weights[0])) + kOwn * L::kRowHeads * 128 + 64);
    const uint64_t k = further(in_panels(here, kPanelBytes), offset_of(shared_, shared_.k[0][0]) +
                                                                 stage * int(sizeof(shared_.k[0])));
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
    commit_products();
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
  float sum_[16];               // of q . k, then of dout . v
  float p_of_[8];               // q . k, then p
  uint32_t words_[2][4];
};

}  // namespace keyhole::sm90
