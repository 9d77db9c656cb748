// course/05_choosing_keys/sparse_attention.cpp
// Attention over lists of keys that an indexer chose: checked against the definition, then counted
// and timed beside dense attention as the text grows.
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

constexpr int64_t kHeads = 8, kDim = 64;            // query heads, all on one key head
constexpr int64_t kIndexHeads = 2, kIndexDim = 16;  // of the indexer
constexpr int64_t kChosen = 64;                     // keys of a query
constexpr double kPairWork = kHeads * 2 * kDim;     // multiplications: q . k and weight * v
constexpr double kScoreWork = kIndexHeads * kIndexDim;

std::vector<float> values(int64_t count, unsigned seed) {
  return course::random_values(static_cast<size_t>(count), seed);
}
TensorView view(const std::vector<float>& data, int64_t heads, int64_t length, int64_t dim) {
  return {data.data(), DType::f32, {1, heads, length, dim}};
}

struct Layer {
  int64_t length;
  std::vector<float> q, k, v, index_q, index_k, out;
  std::vector<int32_t> chosen;

  explicit Layer(int64_t tokens)
      : length(tokens),
        q(values(kHeads * tokens * kDim, 1)),
        k(values(tokens * kDim, 2)),
        v(values(tokens * kDim, 3)),
        index_q(values(kIndexHeads * tokens * kIndexDim, 4)),
        index_k(values(tokens * kIndexDim, 5)),
        out(q.size()),
        chosen(static_cast<size_t>(tokens * kChosen)) {}

  IndexView lists() const { return {chosen.data(), {1, 1, length, kChosen}}; }
  // One list for each query, shared by all heads.
  void choose(const Plan& visible) {
    select_keys(
        {view(index_q, kIndexHeads, length, kIndexDim), view(index_k, 1, length, kIndexDim)},
        {lists()}, {.k = kChosen, .visible = visible, .threads = 1});
  }
  // `lists`: a plan for dense attention, or the chosen keys.
  void attend(const Lists& lists) {
    attention_forward(view(q, kHeads, length, kDim), view(k, 1, length, kDim),
                      view(v, 1, length, kDim), lists, view(out, kHeads, length, kDim), {},
                      {.threads = 1});
  }
};

// The definition: softmax over the keys of the list, and the mean of their values with these
// weights. -1 ends a list.
std::vector<double> by_definition(const Layer& layer) {
  std::vector<double> out(layer.q.size());
  for (int64_t row = 0; row < kHeads * layer.length; ++row) {
    const int32_t* const list = layer.chosen.data() + row % layer.length * kChosen;
    std::vector<double> scores;
    for (int64_t i = 0; i < kChosen && list[i] >= 0; ++i) {
      double score = 0;
      for (int64_t x = 0; x < kDim; ++x) {
        score += double{layer.q[row * kDim + x]} * double{layer.k[list[i] * kDim + x]};
      }
      scores.push_back(score / std::sqrt(double{kDim}));
    }
    const double highest = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (const double score : scores) sum += std::exp(score - highest);
    for (size_t i = 0; i < scores.size(); ++i) {
      const double weight = std::exp(scores[i] - highest) / sum;
      for (int64_t x = 0; x < kDim; ++x) {
        out[row * kDim + x] += weight * double{layer.v[list[i] * kDim + x]};
      }
    }
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t longest = argc > 1 ? std::atoll(argv[1]) : 2048;
  if (longest < 256) return 2;

  // 1. The same result as the definition over the same lists. Keys that nobody chose must not
  // matter: NaN in their values would show. There the lists of all queries but the last are made
  // empty, so that most keys are unchosen.
  Layer layer(256);
  const Plan visible = plan(causal(), layer.length, layer.length);
  layer.choose(visible);
  layer.attend(layer.lists());
  const double error = course::largest_difference(layer.out, by_definition(layer));
  std::printf("largest error against the definition below 1e-5: %s\n", error < 1e-5 ? "yes" : "no");

  std::fill(layer.chosen.begin(), layer.chosen.end() - kChosen, -1);
  std::vector<bool> is_chosen(static_cast<size_t>(layer.length));
  for (const int32_t key : layer.chosen) {
    if (key >= 0) is_chosen[static_cast<size_t>(key)] = true;
  }
  for (size_t i = 0; i < layer.v.size(); ++i) {
    if (!is_chosen[i / kDim]) layer.v[i] = std::numeric_limits<float>::quiet_NaN();
  }
  layer.attend(layer.lists());
  const bool is_finite =
      std::all_of(layer.out.begin(), layer.out.end(), [](float x) { return std::isfinite(x); });
  std::printf("NaN in the %lld keys that nobody chose reaches the result: %s\n\n",
              static_cast<long long>(std::count(is_chosen.begin(), is_chosen.end(), false)),
              is_finite ? "no" : "yes");

  // 2. Work in millions of multiplications, and ms of one core. The indexer scores every pair.
  std::printf("%6s %8s %8s %8s %6s %9s %9s %9s\n", "length", "dense", "indexer", "chosen", "fewer",
              "dense_ms", "select_ms", "attend_ms");
  for (int64_t length = 256; length <= longest; length *= 2) {
    Layer at(length);
    const Plan dense = plan(causal(), length, length);
    const double dense_ms = course::best_milliseconds([&] { at.attend(dense); }, 0.02, 2);
    const double select_ms = course::best_milliseconds([&] { at.choose(dense); }, 0.02, 2);
    const double attend_ms = course::best_milliseconds([&] { at.attend(at.lists()); }, 0.02, 2);
    const double pairs = static_cast<double>(length * (length + 1) / 2);
    const double kept = static_cast<double>(
        std::count_if(at.chosen.begin(), at.chosen.end(), [](int32_t key) { return key >= 0; }));
    const double work = pairs * kScoreWork + kept * kPairWork;
    std::printf("%6lld %8.1f %8.1f %8.1f %5.1fx %9.2f %9.2f %9.2f\n",
                static_cast<long long>(length), pairs * kPairWork / 1e6, pairs * kScoreWork / 1e6,
                kept * kPairWork / 1e6, pairs * kPairWork / work, dense_ms, select_ms, attend_ms);
  }
  return error < 1e-5 && is_finite ? 0 : 1;
}
