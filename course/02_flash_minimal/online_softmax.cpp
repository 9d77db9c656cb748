// course/02_flash_minimal/online_softmax.cpp [TILES]
// Softmax and the weighted mean of values in one pass, when the maximum is not known beforehand:
// first step by step over eight scores, then in tiles of 16, then in two halves that are merged.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <vector>

#include "common/tensors.h"

namespace {

// What is known of a row after some of its scores. exp(-inf) is 0, so the empty state needs no case
// of its own below.
struct State {
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0;  // of exp(score - max)
  double out = 0;  // of exp(score - max) * value: not yet divided by sum
};

// Takes in one more score. The old sums were made with the old maximum; the factor exp(old - new)
// makes them what they would be with the new one.
State absorb(const State& before, double score, double value, double* factor = nullptr) {
  State after;
  after.max = std::max(before.max, score);
  const double rescale = std::exp(before.max - after.max);
  const double weight = std::exp(score - after.max);
  after.sum = before.sum * rescale + weight;
  after.out = before.out * rescale + weight * value;
  if (factor != nullptr) *factor = rescale;
  return after;
}

// The same for two states over different scores. Kernels that split the keys of a row over several
// CTAs do this, and keyhole::merge does it.
State merge(const State& a, const State& b) {
  State both;
  both.max = std::max(a.max, b.max);
  const double of_a = std::exp(a.max - both.max), of_b = std::exp(b.max - both.max);
  both.sum = a.sum * of_a + b.sum * of_b;
  both.out = a.out * of_a + b.out * of_b;
  return both;
}

// Maximum first, then the sums: three passes over the scores.
double by_definition(const std::vector<double>& scores, const std::vector<double>& values) {
  const double max = *std::max_element(scores.begin(), scores.end());
  double sum = 0, out = 0;
  for (const double score : scores) sum += std::exp(score - max);
  for (size_t j = 0; j < scores.size(); ++j) out += std::exp(scores[j] - max) / sum * values[j];
  return out;
}

double close_to_zero(double x) { return std::abs(x) < 1e-12 ? 0 : x; }

}  // namespace

int main(int count, char** arguments) {
  const std::vector<double> scores = {1, 3, 2, 5, 4, 5, 0, 8};
  const std::vector<double> values = {10, 20, 30, 40, 50, 60, 70, 80};
  std::printf("%4s %6s %6s %5s %8s %8s %9s %9s\n", "step", "score", "value", "max", "factor", "sum",
              "out", "out/sum");
  State state;
  for (size_t j = 0; j < scores.size(); ++j) {
    double factor = 0;
    state = absorb(state, scores[j], values[j], &factor);
    std::printf("%4zu %6g %6g %5g %8.4f %8.4f %9.4f %9.4f\n", j + 1, scores[j], values[j],
                state.max, factor, state.sum, state.out, state.out / state.sum);
  }
  std::printf("\none pass %.4f, by the definition %.4f, difference %g\n", state.out / state.sum,
              by_definition(scores, values),
              close_to_zero(state.out / state.sum - by_definition(scores, values)));
  std::printf("lse = max + log(sum) = %.4f\n\n", state.max + std::log(state.sum));

  // A kernel takes a tile of scores at a time: the maximum of a tile first, then its sums, then one
  // rescaling for the whole tile. That is a merge with the state of the tile alone.
  const size_t tile = 16;
  const size_t tiles = count > 1 ? std::max(1ul, std::strtoul(arguments[1], nullptr, 10)) : 8;
  const std::vector<float> many = course::random_values(2 * tiles * tile, 9);
  std::vector<double> all_scores, all_values;
  for (size_t j = 0; j < tiles * tile; ++j) {
    all_scores.push_back(2.0 * many[2 * j]);
    all_values.push_back(many[2 * j + 1]);
  }
  std::printf("%4s %9s %8s %9s %9s\n", "tile", "max", "factor", "lse", "out");
  State row, halves[2];
  for (size_t t = 0; t < tiles; ++t) {
    State of_tile;
    for (size_t j = t * tile; j < (t + 1) * tile; ++j) {
      of_tile = absorb(of_tile, all_scores[j], all_values[j]);
    }
    const double old_max = row.max;
    row = merge(row, of_tile);
    State& half = halves[t % 2];  // even tiles, odd tiles: as if two CTAs shared the row
    half = merge(half, of_tile);
    std::printf("%4zu %9.4f %8.4f %9.4f %9.4f\n", t + 1, row.max, std::exp(old_max - row.max),
                row.max + std::log(row.sum), row.out / row.sum);
  }
  const State merged = merge(halves[0], halves[1]);
  const double expected = by_definition(all_scores, all_values);
  std::printf("\nin tiles %.4f, two halves merged %.4f, by the definition %.4f\n",
              row.out / row.sum, merged.out / merged.sum, expected);
  std::printf("differences %g and %g\n", close_to_zero(row.out / row.sum - expected),
              close_to_zero(merged.out / merged.sum - expected));
}
