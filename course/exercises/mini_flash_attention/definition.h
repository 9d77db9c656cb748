// course/exercises/mini_flash_attention/definition.h
// What a row must be, pair by pair in double precision, and what it is if one step is forgotten:
// the tests compare your result with these to tell you what went wrong.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "exercises/mini_flash_attention/problem.h"

namespace course {

struct Row {
  std::vector<double> out;
  double lse = -std::numeric_limits<double>::infinity(), largest_score = lse;
};

enum class Mistake {
  none,
  no_scale,
  no_division,
  sum_not_rescaled,
  out_not_rescaled,
  nothing_rescaled,
  last_tile_only,
  first_ignored,
  end_ignored,
  mask_ignored,
};

struct Explanation {
  Mistake mistake;
  const char* text;
};
inline constexpr Explanation kExplanations[] = {
    {Mistake::no_scale, "the scores are not multiplied by problem.scale"},
    {Mistake::no_division, "out is not divided by the sum of the weights at the end"},
    {Mistake::sum_not_rescaled, "the old sum is not rescaled when the maximum grows"},
    {Mistake::out_not_rescaled, "the old out is not rescaled when the maximum grows"},
    {Mistake::nothing_rescaled, "nothing is rescaled when the maximum grows"},
    {Mistake::last_tile_only, "every tile begins anew: only the last one counts"},
    {Mistake::first_ignored, "keys before first[i] are not left out"},
    {Mistake::end_ignored, "keys from end[i] on are not left out"},
    {Mistake::mask_ignored, "neither first[i] nor end[i] is respected"},
};

// One row with one mistake; Mistake::none is the definition.
inline Row row_with(Mistake mistake, const Problem& problem, int query) {
  const bool no_mask = mistake == Mistake::mask_ignored;
  const int end = no_mask || mistake == Mistake::end_ignored ? problem.keys : problem.end[query];
  int first = no_mask || mistake == Mistake::first_ignored ? 0 : problem.first[query];
  Row row;
  row.out.assign(problem.head_dim, 0);
  if (first >= end) return row;
  if (mistake == Mistake::last_tile_only) {
    first = std::max(first, (end - 1) / problem.tile * problem.tile);
  }

  std::vector<double> scores;
  for (int key = first; key < end; ++key) {
    double product = 0;
    for (int d = 0; d < problem.head_dim; ++d) {
      product +=
          double(problem.q[query * problem.head_dim + d]) * problem.k[key * problem.head_dim + d];
    }
    scores.push_back(mistake == Mistake::no_scale ? product : product * problem.scale);
  }
  const double maximum = *std::max_element(scores.begin(), scores.end());
  double sum = 0, wrong_sum = 0;
  for (int key = first; key < end; ++key) {
    // What a weight stays if it is never rescaled: relative to the maximum when its tile was done.
    const int tile_end = std::min(end, (key / problem.tile + 1) * problem.tile);
    const double maximum_then =
        *std::max_element(scores.begin(), scores.begin() + (tile_end - first));
    const double score = scores[key - first];
    const double weight = std::exp(score - maximum), stale = std::exp(score - maximum_then);
    const bool stale_out =
        mistake == Mistake::out_not_rescaled || mistake == Mistake::nothing_rescaled;
    const bool stale_sum =
        mistake == Mistake::sum_not_rescaled || mistake == Mistake::nothing_rescaled;
    sum += weight;
    wrong_sum += stale_sum ? stale : weight;
    for (int d = 0; d < problem.head_dim; ++d) {
      row.out[d] += (stale_out ? stale : weight) * problem.v[key * problem.head_dim + d];
    }
  }
  for (double& value : row.out) value /= mistake == Mistake::no_division ? 1 : wrong_sum;
  row.largest_score = maximum;
  row.lse = maximum + std::log(sum);
  return row;
}

}  // namespace course
