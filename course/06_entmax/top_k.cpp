// course/06_entmax/top_k.cpp
// Two ways to give most keys no weight: softmax over the K largest scores, and entmax. Both keep
// the keys with the largest scores. They differ in who says how many, and in what happens at the
// edge.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "06_entmax/entmax.h"
#include "common/tensors.h"

using namespace course;

namespace {

// alpha-entmax over the `k` keys with the largest scores; alpha = 1: softmax. Among equal scores
// the first key wins.
std::vector<double> over_top_k(const std::vector<double>& scores, std::size_t k, double alpha) {
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  order.resize(std::min(k, order.size()));
  std::vector<double> selected;
  for (const std::size_t key : order) selected.push_back(scores[key]);
  const std::vector<double> few = entmax(selected, alpha);
  std::vector<double> weights(scores.size(), 0);
  for (std::size_t i = 0; i < order.size(); ++i) weights[order[i]] = few[i];
  return weights;
}

// How much weight full softmax gives to the keys that `weights` keeps.
double softmax_mass(const std::vector<double>& scores, const std::vector<double>& weights) {
  const std::vector<double> all = entmax(scores, 1);
  double mass = 0;
  for (std::size_t i = 0; i < all.size(); ++i) mass += weights[i] > 0 ? all[i] : 0;
  return mass;
}

// 1,024 normal scores with standard deviation `spread`, of which `peaks` are raised by `height`.
std::vector<double> row(double spread, int peaks, double height) {
  const auto values = random_values(1024, 3);
  std::vector<double> scores(values.begin(), values.end());
  for (double& score : scores) score *= spread;
  for (int i = 0; i < peaks; ++i) scores[static_cast<std::size_t>(100 * i + 7)] += height;
  return scores;
}

}  // namespace

int main() {
  // 1. Four rows. top-8 keeps 8 keys of each; entmax decides by the scores.
  struct Case {
    std::string name;
    std::vector<double> scores;
  };
  const Case cases[] = {{"one_peak", row(0.5, 1, 12)},
                        {"three_peaks", row(0.5, 3, 12)},
                        {"normal", row(1, 0, 0)},
                        {"flat", row(0.125, 0, 0)}};
  std::printf("keys that keep weight, and the softmax weight of these keys\n");
  std::printf("row top8_kept top8_mass entmax_kept entmax_mass both_kept\n");
  for (const Case& c : cases) {
    const auto top = over_top_k(c.scores, 8, 1), sparse = entmax(c.scores, 1.5);
    std::printf("%-12s %2d %.3f %3d %.3f %2d\n", c.name.c_str(), support(top),
                softmax_mass(c.scores, top), support(sparse), softmax_mass(c.scores, sparse),
                support(over_top_k(c.scores, 8, 1.5)));
  }

  // 2. entmax over the keys that it keeps anyway changes nothing: K only matters below that.
  const std::vector<double> scores = row(1, 0, 0);
  const std::vector<double> sparse = entmax(scores, 1.5);
  const auto kept = static_cast<std::size_t>(support(sparse));
  std::printf("\nentmax(1.5) over the top K of a row where it keeps %zu keys\n", kept);
  std::printf("K kept largest_change\n");
  for (const std::size_t k : {kept / 2, kept - 1, kept, 2 * kept}) {
    const std::vector<double> few = over_top_k(scores, k, 1.5);
    std::printf("%zu %d %.6f\n", k, support(few), largest_difference(few, sparse));
  }

  // 3. The edge. Raise one score in small steps from below to above the edge, and note the largest
  // change of any weight in one step.
  std::printf(
      "\none score rises by 0.001 a step, from 0 to 6: largest change of a weight in a step\n");
  std::vector<double> moving = scores;
  std::vector<double> last[3];
  double jump[3] = {0, 0, 0};
  for (int step = 0; step <= 6000; ++step) {
    moving[500] = step * 0.001;
    const std::vector<double> now[3] = {over_top_k(moving, 8, 1), entmax(moving, 1.5),
                                        entmax(moving, 2)};
    for (int i = 0; i < 3; ++i) {
      if (step > 0) jump[i] = std::max(jump[i], largest_difference(now[i], last[i]));
      last[i] = now[i];
    }
  }
  std::printf("softmax(top=8)  %.4f\nentmax(1.5)     %.4f\nentmax(2)       %.4f\n", jump[0],
              jump[1], jump[2]);
}
