// course/06_entmax/threshold.cpp
// The threshold of a row of scores: by sorting, which has a closed form for alpha 2 and 1.5, and by
// steps, each of which is one pass over the row. How many passes does each method need?
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "06_entmax/entmax.h"
#include "common/stopwatch.h"
#include "common/tensors.h"

using namespace course;

namespace {

// With the scores in descending order the kept ones are the first few. If these are the first k,
// the sum of the weights is linear in tau for alpha 2 and quadratic for 1.5, and can be solved. It
// is the right k as long as score k is above the tau that k scores give.
double threshold_by_sorting(std::vector<double> z, double alpha) {
  std::sort(z.begin(), z.end(), std::greater<>());
  const double top = z.front();  // subtracted: the squares of large scores would lose digits
  double sum = 0, squares = 0, tau = 0;
  for (std::size_t i = 0; i < z.size(); ++i) {
    const double count = static_cast<double>(i + 1), value = z[i] - top;
    sum += value;
    squares += value * value;
    const double mean = sum / count;
    double next = (sum - 1) / count;  // alpha 2: sum of (z - tau) = 1
    if (alpha == 1.5) {               // sum of (z - tau)^2 = 1
      const double variance = squares / count - mean * mean;
      if (count * variance > 1) break;
      next = mean - std::sqrt(1 / count - variance);
    }
    if (value <= next) break;
    tau = next;
  }
  return top + tau;
}

using Step = std::function<double(const Sums&)>;  // how far tau moves
bool is_found(const Sums& sums) { return std::abs(sums.weight - 1) <= 1e-6; }

// Passes over the row, the one that finds the maximum among them. A step that would leave the
// bracket is replaced by one to its middle; an empty `step` always goes there: bisection.
int passes(const std::vector<double>& z, double r, double start, const Step& step, double* tau) {
  const double largest = *std::max_element(z.begin(), z.end());
  double low = largest - 1;                                                 // one key with weight 1
  double high = largest - std::pow(static_cast<double>(z.size()), -1 / r);  // all keys are equal
  *tau = start;
  for (int pass = 2; pass <= 100; ++pass) {
    const Sums sums = sums_at(z, r, *tau);
    if (is_found(sums)) return pass;
    (sums.weight > 1 ? low : high) = *tau;
    const double next = step ? *tau + step(sums) : low;
    *tau = next > low && next < high ? next : (low + high) / 2;
  }
  return 0;
}

// The threshold of some of the keys is never above that of all: the other keys only add weight. The
// maxima of 64 groups come with the pass that finds the maximum, and make a good start.
double threshold_of_group_maxima(const std::vector<double>& z, double r) {
  std::vector<double> maxima(z.begin(), z.begin() + std::min<std::ptrdiff_t>(64, std::ssize(z)));
  for (std::size_t i = 64; i < z.size(); ++i) maxima[i % 64] = std::max(maxima[i % 64], z[i]);
  return threshold(maxima, r);
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t most = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 65536;

  std::printf("scores 1 0 -1\n");
  for (const double alpha : {1.0, 1.5, 2.0}) {
    std::printf("alpha %.1f: weights", alpha);
    for (const double weight : entmax({1, 0, -1}, alpha)) std::printf(" %.6f", weight);
    if (alpha > 1) {
      const std::vector<double> z = {alpha - 1, 0, 1 - alpha};
      std::printf(", threshold %.6f", threshold_by_sorting(z, alpha));
    }
    std::printf("\n");
  }

  std::printf("\npasses over the row until the weights sum to 1 within 1e-6\n");
  std::printf("alpha scores kept bisection newton halley norm maxima\n");
  double worst = 0;
  for (const double alpha : {1.25, 1.5, 2.0}) {
    const double r = 1 / (alpha - 1);
    for (std::size_t count = 256; count <= most; count *= 16) {
      const auto scores = random_values(count, 1);
      std::vector<double> z(scores.begin(), scores.end());
      for (double& value : z) value *= alpha - 1;
      const double largest = *std::max_element(z.begin(), z.end()), start = largest - 1;

      const Step newton = [r](const Sums& s) { return (s.weight - 1) / (r * s.slope); };
      const Step halley = [r](const Sums& s) {  // with the second derivative as well
        const double excess = s.weight - 1;
        return 2 * excess * s.slope / (2 * r * s.slope * s.slope - excess * (r - 1) * s.curve);
      };
      const Step norm = [r](const Sums& s) { return newton_step_on_norm(s, r); };
      double tau[5];
      const int bisection_passes = passes(z, r, start, {}, &tau[0]);
      const int newton_passes = passes(z, r, start, newton, &tau[1]);
      const int halley_passes = passes(z, r, start, halley, &tau[2]);
      const int norm_passes = passes(z, r, start, norm, &tau[3]);
      const double better = threshold_of_group_maxima(z, r);
      const int maxima_passes = passes(z, r, better, norm, &tau[4]);
      std::printf("%5.2f %6zu %4d %9d %6d %6d %4d %6d\n", alpha, count,
                  sums_at(z, r, threshold(z, r)).kept, bisection_passes, newton_passes,
                  halley_passes, norm_passes, maxima_passes);
      const double exact = threshold(z, r);
      for (const double found : tau) worst = std::max(worst, std::abs(found - exact));
      if (alpha > 1.25) worst = std::max(worst, std::abs(threshold_by_sorting(z, alpha) - exact));
    }
  }
  std::printf("all methods agree within 2e-6: %s\n", worst < 2e-6 ? "yes" : "no");

  const auto scores = random_values(most, 1);
  std::vector<double> z(scores.begin(), scores.end());
  for (double& value : z) value /= 2;
  double sink = 0;
  const double sort_ms = best_milliseconds([&] { sink += threshold_by_sorting(z, 1.5); });
  const double steps_ms = best_milliseconds([&] { sink += threshold(z, 2); });
  std::printf("\nalpha 1.5, %zu scores: sorting %.2f ms, steps %.2f ms%s\n", most, sort_ms,
              steps_ms, std::isfinite(sink) ? "" : " (not finite)");
}
