// src/kernels/device/score_list.cuh
// The keys of a row that may still have weight, in the memory of one warp, and how the list is made
// shorter: what ranks behind top_k keys of the list, or weighs nothing against the list's own
// lambda, weighs nothing at all (base/entmax.h).
#pragma once

#include "kernels/device/entmax_params.h"
#include "kernels/device/row_scratch.h"
#include "kernels/device/top_keys.cuh"

namespace keyhole::device {

template <class Number>
struct ScoreList {
  Scored<Number>* entries;
  int32_t capacity;

  // Calls visit(is there, score, key) for 32 entries at a time, one per lane.
  template <class Visit>
  __device__ void for_each(int32_t count, Visit visit) const {
    for (int32_t first = 0; first < count; first += 32) {
      const int32_t place = first + int32_t(threadIdx.x % 32);
      const Scored<Number> entry =
          place < count ? entries[place] : Scored<Number>{-std::numeric_limits<Number>::max(), -1};
      visit(place < count, entry.score, entry.key);
    }
  }

  // Keeps the entries for which keeps(is there, score, key), in their order; returns how many. It
  // is called by the whole warp, and may replace the score.
  template <class Keeps>
  __device__ int32_t keep(int32_t count, Keeps keeps) const {
    int32_t kept = 0;
    for_each(count, [&](bool is_there, Number score, int32_t key) {
      const bool is_kept = keeps(is_there, score, key);
      const uint32_t all = __ballot_sync(~0u, is_kept);  // all lanes have read theirs
      const int32_t before = __popc(all & ((1u << (threadIdx.x % 32)) - 1));
      if (is_kept) entries[kept + before] = {score, key};
      kept += __popc(all);
    });
    __syncwarp();
    return kept;
  }
};

// Sums over the scores that for_each gives (is there, score, key) and over a sink (-inf: none), at
// lambda = top + above. The same bits in every lane.
template <class Number, class ForEach>
__device__ EntmaxSums<Number> warp_entmax_sums(const EntmaxPower& power, Number top, Number above,
                                               Number sink, ForEach for_each) {
  const auto rule = EntmaxRule<EntmaxMath<Number>>::of(power);
  EntmaxSums<Number> sums;
  const auto add = [&](Number score) {
    const auto terms = rule.terms((score - top) - above);
    sums.weight += terms.weight;
    sums.slope += terms.slope;
    sums.count += terms.slope > 0 ? 1 : 0;
  };
  for_each([&](bool is_there, Number score, int32_t) {
    if (is_there) add(score);
  });
  if (threadIdx.x % 32 == 0 && sink >= -std::numeric_limits<Number>::max()) add(sink);
  __syncwarp();
  return {warp_sum(sums.weight), warp_sum(sums.slope), warp_sum(sums.count)};
}

// What is known of a row while its keys are met.
template <class Number>
struct RowBounds {
  Number top;     // the largest score, the sink's included; -inf: none yet
  Number lambda;  // a lower bound
  Number lowest;  // keys with a lower score have no weight
};

// Keeps the top_k first entries of the list.
template <class Number>
__device__ __noinline__ int32_t keep_top_keys(const EntmaxParams& p, const ScoreList<Number>& list,
                                              int32_t count, int32_t* histogram,
                                              Number* last_score) {
  if (p.top_k == 0 || count <= p.top_k) return count;
  TopKeys<Number> top = find_top_keys<Number>(p.top_k, p.sizes.k_len, histogram,
                                              [&](auto visit) { list.for_each(count, visit); });
  *last_score = top.last_score;
  return list.keep(count, [&](bool is_there, Number score, int32_t key) {
    return top.takes(is_there, score, key);
  });
}

// Drops what can have no weight, and raises the bounds; returns how many entries are left.
template <class Number>
__device__ __noinline__ int32_t shorten(const EntmaxParams& p, const ScoreList<Number>& list,
                                        int32_t count, int32_t* histogram, Number sink,
                                        RowBounds<Number>& bounds) {
  constexpr int kRounds = 4;
  Number lowest = bounds.lowest;
  count = keep_top_keys(p, list, count, histogram, &lowest);
  if (lowest > bounds.lowest) bounds.lowest = lowest;
  if (p.power.is_softmax()) return count;
  // Steps that never pass the solution: more keys may follow.
  Number above = bounds.lambda > bounds.top ? bounds.lambda - bounds.top : Number(0);
  for (int round = 0; round < kRounds; ++round) {
    const auto sums = warp_entmax_sums(p.power, bounds.top, above, sink,
                                       [&](auto visit) { list.for_each(count, visit); });
    if (!(sums.weight > 1)) break;
    above += lambda_step_below(p.power, sums);
  }
  if (bounds.top + above > bounds.lambda) bounds.lambda = bounds.top + above;
  lowest = lowest_score(p.power, bounds.lambda);
  if (lowest > bounds.lowest) bounds.lowest = lowest;
  return list.keep(count, [&](bool is_there, Number score, int32_t) {
    return is_there && score >= bounds.lowest;
  });
}

}  // namespace keyhole::device
