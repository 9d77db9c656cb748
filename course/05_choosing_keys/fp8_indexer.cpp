// course/05_choosing_keys/fp8_indexer.cpp
// A pitfall: an indexer in 8 bits (e4m3, 3 bits after the leading one). Which of the best keys it
// still finds, and what outlier channels, a Hadamard turn and a missing scale do to them.
#include <keyhole/keyhole.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "common/tensors.h"

using namespace keyhole;

namespace {

constexpr int64_t kHeads = 8, kDim = 128, kQueries = 64, kKeys = 4096, kChosen = 256;
using Values = std::vector<float>;

// The nearest number that e4m3 has, as its 8 bits: sign, 4 bits of exponent (bias 7), 3 of
// mantissa. Below 2^-6 the steps are 2^-9; beyond 464 there is only NaN.
uint8_t e4m3(float x) {
  const float size = std::abs(x);
  const auto sign = static_cast<uint8_t>(std::signbit(x) ? 0x80 : 0);
  if (!(size <= 464)) return sign | 0x7f;
  const int exponent = std::max(size > 0 ? std::ilogb(size) : -6, -6);
  const auto steps = static_cast<int>(std::nearbyint(std::ldexp(size, 3 - exponent)));  // 0 to 16
  return static_cast<uint8_t>(sign | (((exponent + 6) << 3) + steps));
}

// Vectors in 8 bits, each with a scale: x is about e4m3 * scale. If scaled, the largest number of a
// vector becomes 448, the largest that e4m3 has; otherwise all scales are 1.
struct Rounded {
  std::vector<uint8_t> bits;
  Values scales;
};
Rounded rounded(const Values& x, bool is_scaled) {
  Rounded result;
  for (size_t first = 0; first < x.size(); first += kDim) {
    float largest = 1e-4f;
    for (int64_t i = 0; i < kDim; ++i) largest = std::max(largest, std::abs(x[first + i]));
    const float scale = is_scaled ? largest / 448 : 1;
    result.scales.push_back(scale);
    for (int64_t i = 0; i < kDim; ++i) result.bits.push_back(e4m3(x[first + i] / scale));
  }
  return result;
}

// The Walsh-Hadamard transform of each vector: sums and differences of pairs at distance 1, 2, 4,
// ..., 64. It is a rotation, so q . k stays what it was if both are turned. It spreads one large
// number over all 128 places.
Values turned(Values x) {
  for (size_t first = 0; first < x.size(); first += kDim) {
    for (int64_t half = 1; half < kDim; half *= 2) {
      for (int64_t i = 0; i < kDim; ++i) {
        if ((i & half) != 0) continue;
        float &a = x[first + i], &b = x[first + i + half];
        const float sum = a + b, difference = a - b;
        a = sum, b = difference;
      }
    }
    for (int64_t i = 0; i < kDim; ++i) x[first + i] *= std::sqrt(1.0f / kDim);
  }
  return x;
}

std::vector<int32_t> choose(const IndexerView& indexer) {
  std::vector<int32_t> chosen(kQueries * kChosen);
  select_keys(indexer, {IndexView(chosen.data(), {1, 1, kQueries, kChosen})}, {.k = kChosen});
  return chosen;
}

struct Problem {
  Values q, k, w;
};
IndexerView in_fp32(const Problem& p) {
  return {{p.q.data(), DType::f32, {1, kHeads, kQueries, kDim}},
          {p.k.data(), DType::f32, {1, 1, kKeys, kDim}},
          {p.w.data(), DType::f32, {1, kHeads, kQueries}}};
}

// How many of the best keys an indexer in 8 bits finds, and the sum of the true scores of its
// choice beside that of the best.
void compare(const char* name, const Problem& p, bool is_scaled, bool is_turned) {
  Values scores(kQueries * kKeys);
  index_scores(in_fp32(p), {scores.data(), DType::f32, {1, 1, kQueries, kKeys}});
  const std::vector<int32_t> best = choose(in_fp32(p));
  const Rounded q = rounded(is_turned ? turned(p.q) : p.q, is_scaled);
  const Rounded k = rounded(is_turned ? turned(p.k) : p.k, is_scaled);
  Values w = p.w;  // the scales of the queries go into w: w has one number for each, too
  for (size_t i = 0; i < w.size(); ++i) w[i] *= q.scales[i];
  const std::vector<int32_t> found =
      choose({{q.bits.data(), DType::e4m3, {1, kHeads, kQueries, kDim}},
              {k.bits.data(), DType::e4m3, {1, 1, kKeys, kDim}},
              {w.data(), DType::f32, {1, kHeads, kQueries}},
              {k.scales.data(), DType::f32, {1, 1, kKeys}}});
  double of_best = 0, of_found = 0;
  int64_t chosen = 0, same = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const auto query = static_cast<int64_t>(i) / kChosen;
    const auto list = best.begin() + query * kChosen;
    of_best += scores[query * kKeys + best[i]];
    if (found[i] < 0) continue;
    ++chosen;
    same += std::binary_search(list, list + kChosen, found[i]);
    of_found += scores[query * kKeys + found[i]];
  }
  const auto all = static_cast<double>(found.size());
  std::printf("%-26s %7.3f %7.3f %7.3f\n", name, static_cast<double>(chosen) / all,
              static_cast<double>(same) / all, of_found / of_best);
}

}  // namespace

int main() {
  const auto values = [](int64_t count, unsigned seed) {
    return course::random_values(static_cast<size_t>(count), seed);
  };
  const Problem plain = {values(kHeads * kQueries * kDim, 1), values(kKeys * kDim, 2),
                         values(kHeads * kQueries, 3)};
  // All of q and k times a factor, and their first four channels times another.
  const auto changed = [&](float all_of_k, float first_of_q, float first_of_k) {
    Problem p = plain;
    for (size_t i = 0; i < p.q.size(); ++i) p.q[i] *= i % kDim < 4 ? first_of_q : 1;
    for (size_t i = 0; i < p.k.size(); ++i) p.k[i] *= i % kDim < 4 ? first_of_k : all_of_k;
    return p;
  };
  std::printf("e4m3 of 1, 1.06, 1.07, 447, 464, 465, 0.0009:");
  for (const float x : {1.0f, 1.06f, 1.07f, 447.0f, 464.0f, 465.0f, 0.0009f}) {
    std::printf(" %02x", e4m3(x));
  }
  std::printf("\n\n%lld of %lld keys, %lld heads of %lld\n\n", static_cast<long long>(kChosen),
              static_cast<long long>(kKeys), static_cast<long long>(kHeads),
              static_cast<long long>(kDim));
  std::printf("%-26s %7s %7s %7s\n", "indexer_in_8_bits", "chosen", "same", "score");
  compare("a_scale_per_vector", plain, true, false);
  compare("turned", plain, true, true);
  compare("outliers_in_k", changed(1, 1, 20), true, false);
  compare("outliers_in_k,_turned", changed(1, 1, 20), true, true);
  compare("outliers_in_q_and_k", changed(1, 20, 20), true, false);
  compare("outliers_in_both,_turned", changed(1, 20, 20), true, true);
  compare("no_scale", plain, false, false);
  compare("no_scale,_small_keys", changed(0.0005f, 1, 0.0005f), false, false);
  compare("no_scale,_large_keys", changed(300, 1, 300), false, false);
  return 0;
}
