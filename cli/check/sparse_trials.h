// cli/check/sparse_trials.h
// What the trials know of entmax and top_k by themselves: equal scores, a spike, the keys that have
// weight.
#pragma once

#include <map>

#include "cli/check/problem.h"

namespace keyhole::cli {

// How many of so many attended keys may have weight.
int64_t most_kept(const Normalizer& normalizer, int64_t keys);

// The row statistic (lse or lambda) where so many keys that have weight have a score of 0, and
// back.
double statistic_of_equal(const Normalizer& normalizer, double keys);
double number_of_equal(const Normalizer& normalizer, double statistic);
// How far that number may be off because the statistic was rounded: less than a key, unless lambda
// cannot tell so many apart.
double allowed_of_equal(const Normalizer& normalizer, double keys);

// One key has this score, all others 0: its weight.
class SpikeWeights {
 public:
  SpikeWeights(const Normalizer& normalizer, double score)
      : normalizer_(normalizer), score_(score) {}
  double beside(int64_t others);

 private:
  Normalizer normalizer_;
  double score_;
  std::map<int64_t, double> known_;  // by the number of others
};

// The keys that a kernel lists, against weights in fp64. A key so near the threshold, or so near
// the last that top_k takes, that rounding decides may be listed or not.
Finding forward_support(const KernelEntry& kernel, TileShape tile, const Subject& subject);

// Fills in the keys that have weight, for a backward pass.
void write_support(Problem& problem);

}  // namespace keyhole::cli
