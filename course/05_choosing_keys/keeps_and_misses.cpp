// course/05_choosing_keys/keeps_and_misses.cpp
// How much of the attention k of 4,096 keys hold: for scores of five kinds, for seven ways of
// choosing, and for a question that no few keys can answer. Rows of scores, no model.
#include <keyhole/keyhole.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <vector>

#include "common/tensors.h"

namespace {

constexpr int kRows = 32, kLength = 4096, kTopic = 64;  // a topic is 64 neighbours
constexpr int kCounts[] = {64, 128, 256, 512, 1024, 2048};
using Scores = std::vector<float>;  // [kRows][kLength]

Scores normal(unsigned seed) { return course::random_values(size_t{kRows} * kLength, seed); }
Scores made(const Scores& noise, const std::function<float(int row, int key, float noise)>& rule) {
  Scores scores = noise;
  for (size_t i = 0; i < scores.size(); ++i) {
    scores[i] = rule(static_cast<int>(i / kLength), static_cast<int>(i % kLength), noise[i]);
  }
  return scores;
}
// Where row `row` has its topic and its needle: somewhere else in each row, and never together.
int topic_of(int row) { return 5 + row * 37 % 50; }
int needle_of(int row) { return (topic_of(row) + 7) % (kLength / kTopic) * kTopic + row; }

// Means over runs of `size` keys: what is scored if one entry stands for so many.
Scores pooled(const Scores& scores, int size) {
  return made(scores, [&](int row, int key, float) {
    const float* const first = scores.data() + row * kLength + key / size * size;
    float sum = 0;
    for (int i = 0; i < size; ++i) sum += first[i];
    return sum / static_cast<float>(size);
  });
}

// Every way of choosing is top_k of some scores.
std::vector<int32_t> choose(const Scores& scores, int k) {
  std::vector<int32_t> chosen(static_cast<size_t>(kRows * k));
  keyhole::top_k(keyhole::TensorView(scores.data(), keyhole::DType::f32, {1, 1, kRows, kLength}),
                 {keyhole::IndexView(chosen.data(), {1, 1, kRows, k})}, {.k = k});
  return chosen;
}

// Attention with weights exp(score) whose values are the numbers of the keys. Means over the rows.
struct Kept {
  double mass = 0, needle = 0;  // the chosen share of all weights; the share of needles chosen
  double result = 0, difference = 0;  // over the chosen keys; how far the identity below is off
};
Kept kept_of(const Scores& scores, const Scores& chooser, int k) {
  const std::vector<int32_t> chosen = choose(chooser, k);
  Kept mean;
  for (int row = 0; row < kRows; ++row) {
    double weight = 0, sum = 0, kept_weight = 0, kept_sum = 0;
    const auto add = [&](int key, double& weights, double& numbers) {
      const double w = std::exp(double{scores[row * kLength + key]});
      weights += w;
      numbers += w * key;
    };
    for (int key = 0; key < kLength; ++key) add(key, weight, sum);
    for (int i = row * k; i < (row + 1) * k; ++i) {
      add(chosen[i], kept_weight, kept_sum);
      mean.needle += chosen[i] == needle_of(row) ? 1.0 / kRows : 0;
    }
    const double mass = kept_weight / weight, kept = kept_sum / kept_weight;
    const double rest = (sum - kept_sum) / (weight - kept_weight);
    mean.mass += mass / kRows;
    mean.result += kept / kRows;
    // The identity: result = mass * kept + (1 - mass) * rest = kept + (1 - mass) * (rest - kept).
    const double difference = std::abs(sum / weight - kept - (1 - mass) * (rest - kept));
    mean.difference = std::max(mean.difference, difference);
  }
  return mean;
}

// The mass of the best k of very many normal scores with deviation sigma.
double formula(double sigma, double k) {
  const auto below = [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); };
  double low = -9, high = 9;  // the score that a share k / kLength exceeds
  for (int i = 0; i < 60; ++i) {
    const double x = (low + high) / 2;
    (below(-x) > k / kLength ? low : high) = x;
  }
  return below(sigma - low);
}

}  // namespace

int main() {
  const Scores noise = normal(1), other = normal(2), third = normal(3);
  const Scores flat = made(noise, [](int, int, float) { return 0.0f; });
  const Scores sharp = made(noise, [](int, int, float x) { return 3 * x; });
  const Scores peaked = made(noise, [](int, int key, float x) { return key % 512 == 7 ? 10 : x; });
  const Scores topics = made(noise, [](int row, int key, float x) {
    return key / kTopic == topic_of(row) ? x + 4 : key == needle_of(row) ? 8 : x;
  });

  std::printf("mass that the best k of %d keys hold\n\n", kLength);
  std::printf("%5s %7s %8s %9s %8s %9s %7s %7s\n", "k", "flat", "normal_1", "formula_1", "normal_3",
              "formula_3", "peaked", "topics");
  for (const int k : kCounts) {
    const auto mass = [&](const Scores& scores) { return kept_of(scores, scores, k).mass; };
    std::printf("%5d %7.3f %8.3f %9.3f %8.3f %9.3f %7.3f %7.3f\n", k, mass(flat), mass(noise),
                formula(1, k), mass(sharp), formula(3, k), mass(peaked), mass(topics));
  }
  const double difference = kept_of(topics, topics, 256).difference;
  std::printf("\nresult = kept + (1 - mass) (rest - kept), to 1e-9: %s\n",
              difference < 1e-9 ? "yes" : "no");

  // An indexer that is wrong by normal numbers. The choosers nearest and third have no indexer.
  const auto off_by = [&](float sigma) {
    return made(topics, [&, sigma](int row, int key, float x) {
      return x + sigma * other[row * kLength + key];
    });
  };
  const Scores nearest = made(noise, [](int, int key, float) { return static_cast<float>(key); });
  const Scores choosers[] = {topics,  off_by(1), off_by(3), pooled(topics, 16), pooled(topics, 64),
                             nearest, third};
  for (const bool is_needle : {false, true}) {
    std::printf("\n%s\n\n%-8s %6s %8s %8s %9s %9s %8s %7s\n",
                is_needle ? "share of the rows that keep the needle" : "mass of topics, chosen by",
                is_needle ? "k_needle" : "k_mass", "best", "off_by_1", "off_by_3", "pooled_16",
                "pooled_64", "nearest", "random");
    for (const int k : kCounts) {
      std::printf("%-8d", k);
      for (const Scores& chooser : choosers) {
        const Kept kept = kept_of(topics, chooser, k);
        std::printf(" %7.3f", is_needle ? kept.needle : kept.mass);
      }
      std::printf("\n");
    }
  }

  // A question about all keys: the mean of their numbers, 0 to 4095, from 256 of them.
  std::printf("\nmean of the numbers of the keys\n\n%-12s %6s %9s\n", "chosen", "flat", "normal_1");
  const auto line = [&](const char* name, const Scores& of_flat, const Scores& of_noise, int k) {
    const Kept a = kept_of(flat, of_flat, k), b = kept_of(noise, of_noise, k);
    std::printf("%-12s %6.0f %9.0f\n", name, a.result, b.result);
  };
  line("all", flat, flat, kLength);
  line("best_256", flat, noise, 256);
  line("nearest_256", nearest, nearest, 256);
  line("random_256", third, third, 256);
  return difference < 1e-9 ? 0 : 1;
}
