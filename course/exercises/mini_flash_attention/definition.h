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
  mask_ignored,
};

inline const char* explain(Mistake mistake) {
  switch (mistake) {
    case Mistake::no_scale:
      return "the scores are not multiplied by problem.scale";
    case Mistake::no_division:
      return "out is not divided by the sum of the weights at the end";
    case Mistake::sum_not_rescaled:
      return "the old sum is not rescaled when the maximum grows";
    case Mistake::out_not_rescaled:
      return "the old out is not rescaled when the maximum grows";
    case Mistake::nothing_rescaled:
      return "nothing is rescaled when the maximum grows";
    case Mistake::last_tile_only:
      return "every tile begins anew: only the last one counts";
    case Mistake::mask_ignored:
      return "keys outside of first[i] to end[i] are not left out";
    case Mistake::none:
      break;
  }
  return "";
}

// One row with one mistake; Mistake::none is the definition.
inline Row row_with(Mistake mistake, const Problem& problem, int query) {
  const bool all = mistake == Mistake::mask_ignored;
  const int end = all ? problem.keys : problem.end[query];
  int first = all ? 0 : problem.first[query];
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
