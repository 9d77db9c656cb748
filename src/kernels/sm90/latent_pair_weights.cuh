// src/kernels/sm90/latent_pair_weights.cuh
// The weights of a warp of the pair form of attention in latent form: those of its own keys, made
// here, and those of its fellow in the other CTA, brought to the same bases.
#pragma once

#include "kernels/device/rows.cuh"
#include "kernels/sm90/latent_pair_exchange.cuh"

namespace keyhole::sm90 {

// Two 16-bit numbers times two. Exact times a power of two, except for what becomes tiny.
template <class T>
__device__ __forceinline__ uint32_t scaled(uint32_t two, float by) {
  const T* const both = reinterpret_cast<const T*>(&two);
  return mma::Element<T>::pack(device::value_of(both[0]) * by, device::value_of(both[1]) * by);
}

template <class T>
class LatentPairWeights {
  using L = LatentPair;

 public:
  __device__ LatentPairWeights(LatentPairShared& shared, const LatentPairGrid& grid)
      : shared_(shared), grid_(grid), exchange_(shared) {
    store_bases({{kNoScores, kNoScores}, {kNoScores, kNoScores}});
  }

  // Sends the sums of the fellow's keys of a block, and keeps those of the own keys.
  __device__ __forceinline__ void begin(const float (&score)[32]) {
    exchange_.send_sums(score);
#pragma unroll
    for (int i = 0; i < 16; ++i) score_[i] = score[i];
    is_ready(score_);  // copies: the accumulators are overwritten next
  }
  // The rest of the scores, once the fellow has sent it.
  __device__ __forceinline__ void add_sums(uint32_t parity) { exchange_.add_sums(score_, parity); }

  // Makes the weights of the own keys, and sends them.
  __device__ __forceinline__ void make(uint32_t stage, bool is_last) {
    mask_scores(score_, grid_.factor, *static_cast<volatile uint32_t*>(&shared_.there[stage].all));
    float total[2];
    Bases bases = load_bases();
    weigh_scores<T>(score_, bases.own, total, own_);
    if (!__all_sync(~0u, is_within<T>(total[0]) && is_within<T>(total[1]))) {
      raise(bases, total);
      weigh_scores<T>(score_, bases.own, total, own_);
      store_bases(bases);
    }
    sum_[0] += total[0];
    sum_[1] += total[1];
    if (is_last) {
      sum_[0] = sum_of_row(sum_[0]);
      sum_[1] = sum_of_row(sum_[1]);
    }
    exchange_.send_weights(own_, bases.own, sum_);
  }
  __device__ __forceinline__ void await_others(uint32_t parity) const {
    exchange_.await_weights(parity);
  }

  // The weights of the fellow's keys. Afterwards own() and `out` are against the same bases. After
  // the last block the sums are complete.
  __device__ __forceinline__ void take_others(uint32_t (&others)[2][4], float (&out)[128],
                                              bool is_last) {
    float base[2], sum[2], share[2] = {1, 1};
    exchange_.read_weights(others, base, sum);
    const Bases bases = load_bases();
    const bool agrees = base[0] == bases.agreed[0] && base[1] == bases.agreed[1] &&
                        bases.own[0] == bases.agreed[0] && bases.own[1] == bases.agreed[1];
    if (!__all_sync(~0u, agrees)) agree(bases, base, others, share, out);
    if (is_last) {
      sum_[0] += share[0] * sum[0];
      sum_[1] += share[1] * sum[1];
    }
  }

  __device__ __forceinline__ const uint32_t (&own() const)[2][4] { return own_; }
  __device__ __forceinline__ float sum(int half) const { return sum_[half]; }
  __device__ __forceinline__ float base(int half) const { return load_bases().agreed[half]; }

 private:
  static __device__ __forceinline__ uint32_t lane() { return device::thread_index() % 32; }

  // Of rows r and r + 8. agreed: of out. own: of the weights made last, and of the sums. They are
  // kept in shared memory, because the accumulators leave few registers.
  struct Bases {
    float agreed[2], own[2];
  };
  __device__ __forceinline__ uint32_t bases_at() const {
    return smem_address(shared_.bases) + device::thread_index() / 4 * 16;
  }
  __device__ __forceinline__ Bases load_bases() const {
    const uint4 four = device::load_shared_vector(bases_at());
    return {{__uint_as_float(four.x), __uint_as_float(four.z)},
            {__uint_as_float(four.y), __uint_as_float(four.w)}};
  }
  // All four lanes of a row store the same.
  __device__ __forceinline__ void store_bases(const Bases& bases) const {
    __syncwarp();
    device::store_shared_vector(bases_at(),
                                {__float_as_uint(bases.agreed[0]), __float_as_uint(bases.own[0]),
                                 __float_as_uint(bases.agreed[1]), __float_as_uint(bases.own[1])});
    __syncwarp();
  }

  // The own bases of rows that have too large weights.
  __device__ __forceinline__ void raise(Bases& bases, const float (&total)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float top = max_of_row(score_, half);
      const uint32_t within = __ballot_sync(~0u, is_within<T>(total[half]));
      const uint32_t lanes = 0xfu << (lane() & ~3u);  // of the row
      // Subtracting an infinite maximum would make NaN of rows that have none.
      if ((within & lanes) == lanes || !(fabsf(top) < INFINITY)) continue;
      bases.own[half] = fmaxf(bases.agreed[half], ceilf(top));
      sum_[half] *= mma::exp2_fast(bases.agreed[half] - bases.own[half]);
    }
  }

  // Both CTAs take the larger base.
  __device__ __forceinline__ void agree(const Bases& bases, const float (&base)[2],
                                        uint32_t (&others)[2][4], float (&share)[2],
                                        float (&out)[128]) {
    Bases then;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float top = fmaxf(bases.own[half], base[half]);
      const float own = mma::exp2_fast(bases.own[half] - top);
      const float before = mma::exp2_fast(bases.agreed[half] - top);
      share[half] = mma::exp2_fast(base[half] - top);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t& mine = own_[i / 2][i % 2 * 2 + half];
        uint32_t& other = others[i / 2][i % 2 * 2 + half];
        mine = scaled<T>(mine, own);
        other = scaled<T>(other, share[half]);
      }
#pragma unroll
      for (int i = 0; i < 128; i += 4) {
        out[i + 2 * half] *= before;
        out[i + 2 * half + 1] *= before;
      }
      sum_[half] *= own;
      then.agreed[half] = then.own[half] = top;
    }
    store_bases(then);
  }

  LatentPairShared& shared_;
  const LatentPairGrid& grid_;
  const LatentPairExchange exchange_;
  float score_[16], sum_[2] = {0, 0};
  uint32_t own_[2][4];
};

}  // namespace keyhole::sm90
