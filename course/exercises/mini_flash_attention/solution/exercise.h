// course/exercises/mini_flash_attention/solution/exercise.h
// Attention by tiles of keys with the online softmax.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "exercises/mini_flash_attention/problem.h"

namespace course {

// out   [queries][head_dim]: for each query, the mean of the v it sees, weighted by exp(score)
// lse   [queries]: log(sum of exp(score)), the natural logarithm
// A query that sees nothing has out = 0 and lse = -infinity.
inline void flash_attention(const Problem& problem, Scratch& scratch, float* out, float* lse) {
  const int head_dim = problem.head_dim;
  float* const scores = scratch.floats(problem.tile);  // of one tile

  for (int query = 0; query < problem.queries; ++query) {
    const float* const q = problem.q + query * head_dim;
    float* const row = out + query * head_dim;  // the unfinished sum stands where the result will
    for (int d = 0; d < head_dim; ++d) row[d] = 0;
    float largest = -std::numeric_limits<float>::infinity(), sum = 0;

    for (int tile = 0; tile < problem.keys; tile += problem.tile) {
      const int first = std::max(tile, problem.first[query]);
      const int end = std::min({tile + problem.tile, problem.keys, problem.end[query]});
      if (first >= end) continue;  // exp(-inf - -inf) would be NaN

      float tile_largest = largest;
      for (int key = first; key < end; ++key) {
        float product = 0;
        for (int d = 0; d < head_dim; ++d) product += q[d] * problem.k[key * head_dim + d];
        scores[key - tile] = product * problem.scale;
        tile_largest = std::max(tile_largest, scores[key - tile]);
      }

      // What was added so far is relative to the old maximum. Before the first tile that is
      // -infinity, and exp(-infinity) = 0 rescales sums that are 0.
      const float rescale = std::exp(largest - tile_largest);
      largest = tile_largest;
      sum *= rescale;
      for (int d = 0; d < head_dim; ++d) row[d] *= rescale;

      for (int key = first; key < end; ++key) {
        const float weight = std::exp(scores[key - tile] - largest);
        sum += weight;
        for (int d = 0; d < head_dim; ++d) row[d] += weight * problem.v[key * head_dim + d];
      }
    }

    lse[query] = largest + std::log(sum);  // -infinity for a query that sees nothing
    if (sum > 0) {
      for (int d = 0; d < head_dim; ++d) row[d] /= sum;
    }
  }
}

}  // namespace course
