// course/06_entmax/alpha.cpp
// alpha from 1 (softmax) to 2 (sparsemax): the weights of a few scores, then of rows of 1,024
// normal scores: how many keys keep weight, how large the largest weight is, and the entropy, in
// nats.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "06_entmax/entmax.h"
#include "common/tensors.h"

using namespace course;

namespace {

struct Means {
  double kept = 0, entropy = 0, largest = 0;
};

// Means over `rows` rows of `keys` scores with standard deviation `sharpness`.
Means means(double alpha, std::size_t rows, std::size_t keys, double sharpness) {
  const auto values = random_values(rows * keys, 2);
  Means result;
  for (std::size_t row = 0; row < rows; ++row) {
    std::vector<double> scores(keys);
    for (std::size_t i = 0; i < keys; ++i) scores[i] = sharpness * values[row * keys + i];
    double entropy = 0, largest = 0;
    const std::vector<double> weights = entmax(scores, alpha);
    for (const double weight : weights) {
      if (weight > 0) entropy -= weight * std::log(weight);
      largest = std::max(largest, weight);
    }
    result.kept += support(weights) / static_cast<double>(rows);
    result.entropy += entropy / static_cast<double>(rows);
    result.largest += largest / static_cast<double>(rows);
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t keys = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 1024;

  // 13 scores from -3 to 3: every weight can be compared with its neighbour's.
  std::vector<double> scores;
  for (int i = -6; i <= 6; ++i) scores.push_back(i / 2.0);
  const double shown[] = {1, 1.25, 1.5, 2};
  std::vector<std::vector<double>> weights;
  for (const double alpha : shown) weights.push_back(entmax(scores, alpha));
  std::printf("score alpha_1 alpha_1.25 alpha_1.5 alpha_2\n");
  for (std::size_t i = 0; i < scores.size(); ++i) {
    std::printf("%5.1f %7.4f %10.4f %9.4f %7.4f\n", scores[i], weights[0][i], weights[1][i],
                weights[2][i], weights[3][i]);
  }

  // "x4": the same scores, four times as far apart.
  std::printf("\nrows of %zu normal scores, means of 32 rows\n", keys);
  std::printf("alpha kept entropy largest kept_x4 entropy_x4 largest_x4\n");
  for (const double alpha : {1.0, 1.05, 1.1, 1.25, 1.5, 1.75, 2.0}) {
    const Means plain = means(alpha, 32, keys, 1), sharp = means(alpha, 32, keys, 4);
    std::printf("%5.2f %7.1f %6.2f %7.3f %7.1f %6.2f %7.3f\n", alpha, plain.kept, plain.entropy,
                plain.largest, sharp.kept, sharp.entropy, sharp.largest);
  }
}
