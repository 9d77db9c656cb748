// examples/select_keys.cpp
// A lightning indexer: two small heads score every key for every query, the 16 best are kept, and
// attention runs on them alone. Then the indexer learns what dense attention looks at, and its
// choice keeps more of the weight.
#include <keyhole/keyhole.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

using namespace keyhole;

namespace {

constexpr int64_t kLength = 128, kHeads = 2, kHeadDim = 16;  // of the attention
constexpr double kScale = 1;                                 // sharp: some keys stand out
constexpr int64_t kIndexHeads = 2, kIndexDim = 16, kSelected = 16;

// Multiples of 1/8, so that every sum of the scores below is exact.
std::vector<float> random_values(int64_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(generator() % 17) / 8.0f - 1;
  return values;
}

TensorView view(const std::vector<float>& values, int64_t heads, int64_t columns) {
  return {values.data(), DType::f32, {1, heads, kLength, columns}};
}
TensorView rows(const std::vector<float>& values, int64_t heads) {
  return {values.data(), DType::f32, {1, heads, kLength}};
}

double mean(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += double{value};
  return sum / static_cast<double>(values.size());
}

// The share of the attention's weight that the selected keys hold.
double share_kept(const IndexView& selected, const std::vector<float>& q,
                  const std::vector<float>& k, const std::vector<float>& all_lse) {
  std::vector<float> out(q.size()), lse(all_lse.size());
  attention_forward(view(q, kHeads, kHeadDim), view(k, 1, kHeadDim), view(k, 1, kHeadDim), selected,
                    view(out, kHeads, kHeadDim), rows(lse, kHeads), {.scale = kScale});
  double kept = 0;
  for (size_t i = 0; i < lse.size(); ++i) kept += std::exp(double{lse[i]} - double{all_lse[i]});
  return kept / static_cast<double>(lse.size());
}

}  // namespace

int main() {
  // 1. What a model would compute: queries and keys of the attention, and those of the indexer.
  const auto q = random_values(kHeads * kLength * kHeadDim, 1);
  const auto k = random_values(kLength * kHeadDim, 2);
  auto index_q = random_values(kIndexHeads * kLength * kIndexDim, 3);
  auto index_k = random_values(kLength * kIndexDim, 4);
  std::vector<float> w(static_cast<size_t>(kIndexHeads * kLength), 1.0f);
  const IndexerView indexer{view(index_q, kIndexHeads, kIndexDim), view(index_k, 1, kIndexDim),
                            rows(w, kIndexHeads)};

  // 2. The best keys up to each query. A query always keeps itself and the key before it.
  std::vector<int32_t> chosen(static_cast<size_t>(kLength * kSelected));
  std::vector<int32_t> counts(static_cast<size_t>(kLength));
  const Selection selection{IndexView(chosen.data(), {1, 1, kLength, kSelected}),
                            IndexView(counts.data(), {1, 1, kLength, 1})};
  const Plan visible = plan(causal(), kLength, kLength);
  const SelectOptions options{
      .k = kSelected, .visible = visible, .always = plan(window(1), kLength, kLength)};
  select_keys(indexer, selection, options);
  for (const int64_t query : {int64_t{3}, int64_t{100}}) {
    std::printf("query %lld chooses %d keys:", static_cast<long long>(query),
                counts[static_cast<size_t>(query)]);
    for (int64_t i = 0; i < kSelected; ++i) {
      std::printf(" %d", chosen[static_cast<size_t>(query * kSelected + i)]);
    }
    std::printf("\n");
  }

  // 3. Dense attention is the target. Plain gradient descent on the loss of every query.
  std::vector<float> out(q.size()), lse(static_cast<size_t>(kHeads * kLength));
  attention_forward(view(q, kHeads, kHeadDim), view(k, 1, kHeadDim), view(k, 1, kHeadDim), visible,
                    view(out, kHeads, kHeadDim), rows(lse, kHeads), {.scale = kScale});
  const AttentionTarget target{view(q, kHeads, kHeadDim), view(k, 1, kHeadDim), rows(lse, kHeads),
                               kScale};
  const double kept_before = share_kept(selection.indices, q, k, lse);
  std::vector<float> loss(static_cast<size_t>(kLength)), stats(static_cast<size_t>(2 * kLength));
  const std::vector<float> dloss(loss.size(), 1.0f);
  std::vector<float> dq(index_q.size()), dk(index_k.size()), dw(w.size());
  double first_loss = 0;
  const auto descend = [](std::vector<float>& values, const std::vector<float>& gradient) {
    for (size_t i = 0; i < values.size(); ++i) values[i] -= 0.05f * gradient[i];
  };
  for (int step = 0; step < 600; ++step) {
    index_loss_forward(indexer, target, visible, rows(loss, 1), view(stats, 1, 2));
    if (step == 0) first_loss = mean(loss);
    index_loss_backward(
        rows(dloss, 1), indexer, target, visible, view(stats, 1, 2),
        {view(dq, kIndexHeads, kIndexDim), view(dk, 1, kIndexDim), rows(dw, kIndexHeads)});
    descend(index_q, dq);
    descend(index_k, dk);
    descend(w, dw);
  }

  // 4. The same selection with what was learned.
  select_keys(indexer, selection, options);
  const double kept_after = share_kept(selection.indices, q, k, lse);
  std::printf("the loss fell below a fifth: %s\n", mean(loss) < first_loss / 5 ? "yes" : "no");
  std::printf(
      "%lld of %lld keys hold %.0f %% of the weight before, and more than 55 %% after: %s\n",
      static_cast<long long>(kSelected), static_cast<long long>(kLength), 100 * kept_before,
      kept_after > 0.55 ? "yes" : "no");
  return kept_after > kept_before ? 0 : 1;
}
