// src/kernels/sm80/forward_steps.cuh
// What a warp does with 64 keys: scores, probabilities, and the values they weigh.
//
// A warp computes the scores of one step while it multiplies the values of the previous step, whose
// probabilities wait in registers. The exponentials run between these matrix products.
//
//   slice by slice of step i      s = q . k(i)      out += p(i-1) . v(i-1) between p(i) = 2^s
//
// The row maximum is guessed. A row keeps the maximum of the first step in which it attended to
// something, as long as no probability exceeds Element<T>::max_probability against it. The row
// sums, needed anyway, show when one does; then that step is repeated from its keys with a raised
// maximum. The common step needs no maximum, no exchange between lanes and no rescaling.
#pragma once

#include "kernels/device/signed_rule.cuh"
#include "kernels/mma/ptx.cuh"
#include "kernels/sm80/config.h"
#include "kernels/sm80/forward_loads.cuh"
#include "kernels/sm80/forward_result.cuh"

namespace keyhole::sm80 {

// With the magnitude of the scale; its sign is applied to the queries (device/signed_rule.cuh).
using Rule = SoftmaxRule<device::FastMath>;

// The warp's queries: fragments in registers, or read from shared memory at each use.
template <class C>
class Queries {
 public:
  __device__ explicit Queries(uint32_t warp_rows) {
    find(warp_rows);
    if constexpr (C::keeps_queries) {
#pragma unroll
      for (int x = 0; x < C::head_dim / 16; ++x) read(kept_[x], x);
    }
  }
  // Recomputed before each step, so that the address takes no register in between.
  __device__ __forceinline__ void find(uint32_t warp_rows) {
    const uint32_t lane = thread_index() % 32;
    place_ = warp_rows + Swizzle<C>::offset(lane % 16, lane / 16);
  }
  // Columns [16 * x, 16 * x + 16) of every block.
  __device__ __forceinline__ void get(uint32_t (&to)[Shape<C>::blocks][4], int x) const {
    if constexpr (C::keeps_queries) {
#pragma unroll
      for (int b = 0; b < Shape<C>::blocks; ++b) {
#pragma unroll
        for (int i = 0; i < 4; ++i) to[b][i] = kept_[x][b][i];
      }
    } else {
      read(to, x);
    }
  }

 private:
  __device__ __forceinline__ void read(uint32_t (&to)[Shape<C>::blocks][4], int x) const {
#pragma unroll
    for (int b = 0; b < Shape<C>::blocks; ++b) {
      load_matrices(to[b], Swizzle<C>::further(place_, 2 * x) + b * 16 * Shape<C>::row_bytes);
    }
  }
  uint32_t place_;
  uint32_t kept_[C::keeps_queries ? C::head_dim / 16 : 1][Shape<C>::blocks][4];
};

// s = q . k for a slice of keys, stored from s[...][first_n] on. keys: this lane's address, row
// lane % 8 + lane / 16 * 8 and chunk lane / 8 % 2 of the slice.
template <class T, class C, int kKeys>
__device__ __forceinline__ void multiply_keys(float (&s)[Shape<C>::blocks][kKeys / 8][4],
                                              int first_n, const Queries<C>& queries,
                                              uint32_t keys) {
#pragma unroll
  for (int x = 0; x < C::head_dim / 16; ++x) {
    uint32_t q[Shape<C>::blocks][4];
    queries.get(q, x);
#pragma unroll
    for (int i = 0; i < C::slice_keys / 8; i += 2) {
      uint32_t k[4];
      load_matrices(k, Swizzle<C>::further(keys, 2 * x) + i * 8 * Shape<C>::row_bytes);
      const int n = first_n + i;
#pragma unroll
      for (int b = 0; b < Shape<C>::blocks; ++b) {
        if (x == 0) {
          Element<T>::multiply(s[b][n], q[b], k[0], k[1]);
          Element<T>::multiply(s[b][n + 1], q[b], k[2], k[3]);
        } else {
          Element<T>::multiply_add(s[b][n], q[b], k[0], k[1]);
          Element<T>::multiply_add(s[b][n + 1], q[b], k[2], k[3]);
        }
      }
    }
  }
}

// out += p . v for 16 keys and 16 columns. values: this lane's address, row lane % 16 and chunk
// lane / 16 of the first ones.
template <class T, class C>
__device__ __forceinline__ void multiply_values(Accumulators<C>& acc,
                                                const uint32_t (&p)[Shape<C>::blocks][4][4],
                                                uint32_t values, int keys16, int cols16) {
  uint32_t v[4];
  load_matrices_transposed(
      v, Swizzle<C>::further(values, 2 * cols16) + keys16 * 16 * Shape<C>::row_bytes);
#pragma unroll
  for (int b = 0; b < Shape<C>::blocks; ++b) {
    Element<T>::multiply_add(acc.out[b][2 * cols16], p[b][keys16], v[0], v[1]);
    Element<T>::multiply_add(acc.out[b][2 * cols16 + 1], p[b][keys16], v[2], v[3]);
  }
}

template <class T, class C>
__device__ __forceinline__ void add_values(Accumulators<C>& acc,
                                           const uint32_t (&p)[Shape<C>::blocks][4][4],
                                           uint32_t values) {
#pragma unroll
  for (int keys16 = 0; keys16 < 4; ++keys16) {
#pragma unroll
    for (int x = 0; x < C::head_dim / 16; ++x) multiply_values<T, C>(acc, p, values, keys16, x);
  }
}

template <class C, int kKeys, class Change>
__device__ __forceinline__ void for_each_score(float (&s)[Shape<C>::blocks][kKeys / 8][4],
                                               Change change) {
#pragma unroll
  for (int b = 0; b < Shape<C>::blocks; ++b) {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) change(s[b][n][i], b, n, i);
    }
  }
}
// A slice begins at column 8 * first_n of its step. Pairs that do not attend are replaced by
// selection, whatever their score.
template <class C, int kKeys>
__device__ __forceinline__ void apply_mask(float (&s)[Shape<C>::blocks][kKeys / 8][4],
                                           const uint32_t (&mask)[Shape<C>::blocks], int first_n) {
  for_each_score<C, kKeys>(s, [&](float& x, int b, int n, int i) {
    if ((mask[b] >> (4 * (first_n + n) + i) & 1) == 0) x = -INFINITY;
  });
}

// Probabilities of 16 keys, from column 16 * n16 of a slice, packed as the next product reads them.
template <class T, class C, int kKeys>
__device__ __forceinline__ void pack(uint32_t (&p)[Shape<C>::blocks][4][4], int keys16,
                                     const float (&s)[Shape<C>::blocks][kKeys / 8][4], int n16) {
#pragma unroll
  for (int b = 0; b < Shape<C>::blocks; ++b) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&from)[4] = s[b][2 * n16 + i / 2];
      p[b][keys16][i] = Element<T>::pack(from[i % 2 * 2], from[i % 2 * 2 + 1]);
    }
  }
}

// Finishes the probabilities and sums of a slice before the next one begins.
template <class C>
__device__ __forceinline__ void settle(uint32_t (&p)[Shape<C>::blocks][4][4],
                                       float (&sum)[Shape<C>::blocks][2], int first_keys16,
                                       bool never) {
#pragma unroll
  for (int b = 0; b < Shape<C>::blocks; ++b) {
#pragma unroll
    for (int i = first_keys16; i < first_keys16 + C::slice_keys / 16; i += 2) {
      compute_now(p[b][i], p[b][i + 1], sum[b], never);
    }
  }
}

// The mask of a step and its addresses in shared memory.
template <class C>
struct Step {
  uint32_t keys, values;  // this lane's addresses; values are those of the previous step
  bool is_partial;
  uint32_t mask[Shape<C>::blocks];  // of a partial tile
};

// Scores of the slice of a step that begins at key `first`.
template <class C>
using SliceScores = float[Shape<C>::blocks][C::slice_keys / 8][4];
template <class T, class C>
__device__ __forceinline__ void make_scores(SliceScores<C>& s, const Queries<C>& queries,
                                            const Step<C>& step, int first) {
  multiply_keys<T, C, C::slice_keys>(s, 0, queries, step.keys + first * Shape<C>::row_bytes);
  if (step.is_partial) apply_mask<C, C::slice_keys>(s, step.mask, first / 8);
}

// The common step: probabilities of one step, whose first scores are ready, and the values of the
// previous step. False: a probability exceeded the limit, and p is unusable.
template <class T, class C>
__device__ __forceinline__ bool do_step(Accumulators<C>& acc, uint32_t (&p)[Shape<C>::blocks][4][4],
                                        const Queries<C>& queries, const Step<C>& step,
                                        const Rule& rule, SliceScores<C>& s) {
  constexpr int blocks = Shape<C>::blocks, cols16 = C::head_dim / 16;
  constexpr int together = (blocks * 8 + cols16 - 1) / cols16;  // exponentials per 16 columns of v
  float sum[blocks][2] = {};
#pragma unroll
  for (int first = 0; first < Shape<C>::step_keys; first += C::slice_keys) {
    if (first > 0) make_scores<T, C>(s, queries, step, first);
    if constexpr (C::settles_slices) keep_order();
#pragma unroll
    for (int n16 = 0; n16 < C::slice_keys / 16; ++n16) {
      const int keys16 = first / 16 + n16;
#pragma unroll
      for (int x = 0; x < cols16; ++x) {
        multiply_values<T, C>(acc, p, step.values, keys16, x);
#pragma unroll
        for (int e = x * together; e < (x + 1) * together && e < blocks * 8; ++e) {
          const int b = e / 8, i = e % 4;
          float& score = s[b][2 * n16 + e % 8 / 4][i];
          score = rule.weight_of_bent(score, acc.minus_base[b][i / 2]);
          sum[b][i / 2] += score;
        }
      }
      pack<T, C, C::slice_keys>(p, keys16, s, n16);
    }
    if constexpr (C::settles_slices) settle<C>(p, sum, first / 16, rule.factor < 0);
  }
  float top = 0;
#pragma unroll
  for (int b = 0; b < blocks; ++b) top = fmaxf(top, fmaxf(sum[b][0], sum[b][1]));
  if (__any_sync(~0u, top > Element<T>::max_probability)) return false;
#pragma unroll
  for (int b = 0; b < blocks; ++b) {
    acc.sum[b][0] += sum[b][0];
    acc.sum[b][1] += sum[b][1];
  }
  return true;
}

// The step that sets row maxima: scores, their row maxima, rescaling of what was accumulated, then
// the probabilities. For the first step of a list, for a step that exceeded the limit, and for
// softcaps.
template <class T, class C>
__device__ __forceinline__ void do_step_with_new_base(Accumulators<C>& acc,
                                                      uint32_t (&p)[Shape<C>::blocks][4][4],
                                                      const Queries<C>& queries,
                                                      const Step<C>& step, const Rule& rule) {
  constexpr int blocks = Shape<C>::blocks, step_keys = Shape<C>::step_keys;
  float s[blocks][step_keys / 8][4];
#pragma unroll
  for (int first = 0; first < step_keys; first += C::slice_keys) {
    multiply_keys<T, C, step_keys>(s, first / 8, queries, step.keys + first * Shape<C>::row_bytes);
    keep_order();
  }
  if (rule.is_bent()) {
    for_each_score<C, step_keys>(s, [&](float& x, int, int, int) { x = rule.bend(x); });
  }
  if (step.is_partial) apply_mask<C, step_keys>(s, step.mask, 0);
#pragma unroll
  for (int b = 0; b < blocks; ++b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = -INFINITY;  // skips NaN, which the sum still shows
#pragma unroll
      for (int n = 0; n < step_keys / 8; ++n) {
        top = fmaxf(top, fmaxf(s[b][n][2 * half], s[b][n][2 * half + 1]));
      }
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      const float old_base = -acc.minus_base[b][half];
      const float base = fmaxf(old_base, rule.score(top));
      const float shrink = exp2_fast(old_base - base);
      acc.minus_base[b][half] = -base;
      float sum = 0;
#pragma unroll
      for (int n = 0; n < step_keys / 8; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          s[b][n][i] = rule.weight_of_bent(s[b][n][i], -base);
          sum += s[b][n][i];
        }
      }
      acc.sum[b][half] = acc.sum[b][half] * shrink + sum;
#pragma unroll
      for (int n = 0; n < C::head_dim / 8; ++n) {
        acc.out[b][n][2 * half] *= shrink;
        acc.out[b][n][2 * half + 1] *= shrink;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < step_keys / 16; ++i) pack<T, C, step_keys>(p, i, s, i);
}

}  // namespace keyhole::sm80
