// course/05_choosing_keys/indexer.cpp
// The lightning indexer: a small score of every key for every query. Four keys by hand, then 512 by
// three loops and by keyhole::index_scores, which must agree in every bit.
#include <keyhole/keyhole.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <vector>

#include "common/stopwatch.h"
#include "common/tensors.h"

using namespace keyhole;

namespace {

constexpr int64_t kHeads = 4, kDim = 32;  // of the indexer; DeepSeek-V3.2 has 64 heads of 128

float dot(const float* a, const float* b, int64_t dim) {
  float sum = 0;
  for (int64_t x = 0; x < dim; ++x) sum += a[x] * b[x];
  return sum;
}

// q [heads, length, dim], k [length, dim], w [heads, length]. The score of key s for query t is
//   sum over the heads j of  w[j, t] * max(q[j, t] . k[s], 0)
// There is one k for all heads: that is most of why an indexer is cheap.
float score_of(const float* q, const float* k, const float* w, int64_t heads, int64_t length,
               int64_t dim, int64_t query, int64_t key) {
  float score = 0;
  for (int64_t j = 0; j < heads; ++j) {
    const float product = dot(q + (j * length + query) * dim, k + key * dim, dim);
    score += w[j * length + query] * std::max(product, 0.0f);
  }
  return score;
}

void four_keys_by_hand() {
  // One query with two heads. w of the second is negative: it lowers the score of keys it fits.
  const float q[2][2] = {{1, 0}, {0, 2}}, w[2] = {1, -0.5f};
  const float k[4][2] = {{1, 1}, {2, -1}, {-1, 3}, {3, 0}};
  std::printf("key q0.k q1.k score without_max\n");
  for (int s = 0; s < 4; ++s) {
    const float a = dot(q[0], k[s], 2), b = dot(q[1], k[s], 2);
    std::printf("%3d %4g %4g %5g %11g\n", s, a, b, score_of(q[0], k[s], w, 2, 1, 2, 0, 0),
                w[0] * a + w[1] * b);
  }
  // Without the maximum all heads are one: sum of w_j (q_j . k) = (sum of w_j q_j) . k.
  const float sum[2] = {w[0] * q[0][0] + w[1] * q[1][0], w[0] * q[0][1] + w[1] * q[1][1]};
  std::printf("one head (%g, %g) gives the last column, too:", sum[0], sum[1]);
  for (const auto& key : k) std::printf(" %g", dot(sum, key, 2));
  std::printf("\n\n");
}

// Multiples of 1/8, so that sums of products are exact in any order.
std::vector<float> eighths(int64_t count, unsigned seed) {
  std::vector<float> values = course::random_values(static_cast<size_t>(count), seed);
  for (float& value : values) value = std::round(8 * value) / 8;
  return values;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t length = argc > 1 ? std::atoll(argv[1]) : 512;
  if (length < 1) return 2;
  four_keys_by_hand();

  const auto q = eighths(kHeads * length * kDim, 1), k = eighths(length * kDim, 2);
  const auto w = eighths(kHeads * length, 3);
  std::vector<float> by_hand(static_cast<size_t>(length * length)), scores(by_hand.size());
  const double hand_ms = course::best_milliseconds([&] {
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t s = 0; s < length; ++s) {
        by_hand[static_cast<size_t>(t * length + s)] =
            s <= t ? score_of(q.data(), k.data(), w.data(), kHeads, length, kDim, t, s)
                   : -std::numeric_limits<float>::infinity();  // a query does not see what follows
      }
    }
  });

  const IndexerView indexer{{q.data(), DType::f32, {1, kHeads, length, kDim}},
                            {k.data(), DType::f32, {1, 1, length, kDim}},
                            {w.data(), DType::f32, {1, kHeads, length}}};
  const SelectOptions options{.visible = plan(causal(), length, length), .threads = 1};
  const TensorView result(scores.data(), DType::f32, {1, 1, length, length});
  const double library_ms =
      course::best_milliseconds([&] { index_scores(indexer, result, options); });

  int64_t different = 0, negative = 0, hidden = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    different += scores[i] != by_hand[i];
    hidden += std::isinf(scores[i]);  // -inf: the key comes after the query
    negative += scores[i] < 0 && !std::isinf(scores[i]);
  }
  const int64_t visible = length * (length + 1) / 2;
  std::printf("%lld queries and keys, %lld heads of %lld, causal\n", static_cast<long long>(length),
              static_cast<long long>(kHeads), static_cast<long long>(kDim));
  std::printf("visible pairs   %lld, hidden %lld\n", static_cast<long long>(visible),
              static_cast<long long>(hidden));
  std::printf("different       %lld\n", static_cast<long long>(different));
  std::printf("negative        %.0f %% of the scores\n",
              100.0 * static_cast<double>(negative) / static_cast<double>(visible));
  std::printf("multiplications %lld a pair, %.1f million in all\n",
              static_cast<long long>(kHeads * kDim),
              static_cast<double>(visible * kHeads * kDim) / 1e6);
  std::printf("by hand         %.2f ms\n", hand_ms);
  std::printf("keyhole         %.2f ms, one thread: %s\n", library_ms,
              kernel_for_selection(indexer, {.k = 1}).c_str());
  return different == 0 ? 0 : 1;
}
