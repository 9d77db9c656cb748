// course/06_entmax/gradient.cpp
// From the gradient g of the weights to the gradient of the scores. The threshold depends on the
// scores, too: the formula that forgets this is wrong. Both are compared with differences.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "06_entmax/entmax.h"
#include "common/tensors.h"

using namespace course;

namespace {

// loss = sum of g_i * p_i, so dloss/dp = g.
double loss(const std::vector<double>& scores, const std::vector<double>& g, double alpha) {
  const std::vector<double> p = entmax(scores, alpha);
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) sum += g[i] * p[i];
  return sum;
}

// How fast the weight of a key grows with its own score while tau stands still: u = p^(2 - alpha)
// on the support, 0 outside. Softmax: u = p. Sparsemax: u = 1.
std::vector<double> slopes(const std::vector<double>& p, double alpha) {
  std::vector<double> u(p.size());
  for (std::size_t i = 0; i < p.size(); ++i) u[i] = p[i] > 0 ? std::pow(p[i], 2 - alpha) : 0;
  return u;
}

// ds_i = u_i (g_i - delta). delta, the mean of g weighted with u, is what tau adds: the sum of the
// weights stays 1, so the sum of ds is 0.
std::vector<double> gradient(const std::vector<double>& p, const std::vector<double>& g,
                             double alpha, bool tau_moves) {
  const std::vector<double> u = slopes(p, alpha);
  double sum = 0, weighted = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    sum += u[i];
    weighted += u[i] * g[i];
  }
  const double delta = tau_moves ? weighted / sum : 0;
  std::vector<double> ds(p.size());
  for (std::size_t i = 0; i < p.size(); ++i) ds[i] = u[i] * (g[i] - delta);
  return ds;
}

// (loss(s + h) - loss(s - h)) / 2h, one score after the other.
std::vector<double> by_differences(std::vector<double> scores, const std::vector<double>& g,
                                   double alpha) {
  const double h = 1e-5;
  std::vector<double> ds(scores.size());
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const double score = scores[i];
    scores[i] = score + h;
    const double above = loss(scores, g, alpha);
    scores[i] = score - h;
    ds[i] = (above - loss(scores, g, alpha)) / (2 * h);
    scores[i] = score;
  }
  return ds;
}

}  // namespace

int main() {
  const auto first = random_values(256, 4), second = random_values(256, 5);
  const std::vector<double> scores(first.begin(), first.end()), g(second.begin(), second.end());

  std::printf("gradient of 256 scores: largest error against differences\n");
  std::printf("alpha kept not_zero error error_if_tau_stands\n");
  for (const double alpha : {1.0, 1.25, 1.5, 1.75, 2.0}) {
    const std::vector<double> p = entmax(scores, alpha), exact = by_differences(scores, g, alpha);
    const std::vector<double> ds = gradient(p, g, alpha, true);
    const auto not_zero = std::count_if(ds.begin(), ds.end(), [](double x) { return x != 0; });
    std::printf("%.2f %d %d %.1e %.3f\n", alpha, support(p), static_cast<int>(not_zero),
                largest_difference(ds, exact),
                largest_difference(gradient(p, g, alpha, false), exact));
  }

  // Two keys: score 0 and a score t that rises. entmax(1.5) lets the second in at t = -2, entmax(2)
  // at t = -1. Beside: how fast its weight grows there.
  std::printf("\nscores 0 and t: weight of t and its derivative\n");
  std::printf("t weight_1.5 slope_1.5 weight_2 slope_2\n");
  for (const double t : {-2.01, -1.99, -1.5, -1.01, -0.99, -0.5, 0.0}) {
    std::printf("%5.2f", t);
    for (const double alpha : {1.5, 2.0}) {
      const std::vector<double> p = entmax({0, t}, alpha);
      std::printf(" %.4f %.4f", p[1], gradient(p, {0, 1}, alpha, true)[1]);
    }
    std::printf("\n");
  }
}
