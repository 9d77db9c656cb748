// src/kernels/device/loss_sums.cuh
// What the index loss of a row needs of its pairs, and how it is stored.
#pragma once

#include <cmath>

#include "kernels/device/index_loss_params.h"

namespace keyhole::device {

//   loss = sum of p * (log p - score) + lse with p = weight / total
// The sums are fp64: the loss is their small difference.
struct LossSums {
  float top;                                           // the highest score
  double powers, total, weight_logs, weighted_scores;  // powers: of score - top

  static __device__ LossSums none() { return {-INFINITY, 0, 0, 0, 0}; }
  __device__ void add(float score, float weight) {
    if (score > top) {
      powers = powers * expf(top - score) + 1;
      top = score;
    } else if (score != -INFINITY) {  // which adds 0
      powers += expf(score - top);
    }
    total += weight;
    if (weight == 0) return;  // whatever the score is
    weight_logs += double(weight) * logf(weight);
    weighted_scores += double(weight) * score;
  }
  __device__ void add(const LossSums& other) {
    if (other.powers != 0) {  // 0: no keys, or all of their scores are -infinity
      const float highest = fmaxf(top, other.top);
      powers = powers == 0 ? 0 : powers * expf(top - highest);
      powers += other.powers * expf(other.top - highest);
      top = highest;
    }
    total += other.total;
    weight_logs += other.weight_logs;
    weighted_scores += other.weighted_scores;
  }
  __device__ double lse() const { return double(top) + logf(float(powers)); }
  __device__ double loss() const {
    if (total == 0) return 0;
    return (weight_logs - weighted_scores) / total - logf(float(total)) + lse();
  }
};

__device__ inline void store_loss(const IndexLossParams& p, int32_t unit, int64_t query,
                                  double loss, double lse, double total) {
  const int32_t batch = unit / p.groups, group = unit % p.groups;
  *p.loss.row<float>(batch, group, query) = float(loss);
  float* const stats = p.stats.row<float>(batch, group, query);
  stats[0] = float(lse);
  stats[1] = float(total);
}
__device__ inline void store_loss(const IndexLossParams& p, int32_t unit, int64_t query,
                                  const LossSums& sums) {
  store_loss(p, unit, query, sums.loss(), sums.lse(), sums.total);
}

// The query of a row at hand; -1: `picked` names none.
__device__ inline int64_t query_at(const IndexLossParams& p, int64_t index) {
  const int64_t place = p.first_row + index;
  const int64_t query = p.picked == nullptr ? place : p.picked[place];
  return uint64_t(query) < uint64_t(p.q_len) ? query : -1;
}

}  // namespace keyhole::device
