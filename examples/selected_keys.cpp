// examples/selected_keys.cpp
// Attention over keys that the program selects as it runs: for every query the 32 best of those
// before it. No pattern and no plan; the selection is an index tensor.
#include <keyhole/keyhole.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

using namespace keyhole;

namespace {

constexpr int64_t kLength = 512, kHeadDim = 32, kHeads = 4, kKvHeads = 2, kSelected = 32;

std::vector<float> random_values(int64_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(generator()) / 1073741824.0f - 2;
  return values;
}

// The keys up to `query` that score best, summed over the query heads that share them; -1 where
// there are fewer. A model would have a cheaper way to find them.
std::vector<int32_t> select(const float* q, const float* k, int64_t query) {
  std::vector<std::pair<float, int32_t>> scored;
  for (int64_t key = 0; key <= query; ++key) {
    float score = 0;
    for (int64_t head = 0; head < kHeads / kKvHeads; ++head) {
      const float* const row = q + (head * kLength + query) * kHeadDim;
      for (int64_t d = 0; d < kHeadDim; ++d) score += row[d] * k[key * kHeadDim + d];
    }
    scored.push_back({-score, static_cast<int32_t>(key)});
  }
  const auto count = std::min<std::ptrdiff_t>(kSelected, std::ssize(scored));
  std::partial_sort(scored.begin(), scored.begin() + count, scored.end());
  std::vector<int32_t> keys(kSelected, -1);
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    keys[static_cast<size_t>(i)] = scored[static_cast<size_t>(i)].second;
  }
  return keys;
}

}  // namespace

int main() {
  const auto q = random_values(kHeads * kLength * kHeadDim, 1);
  const auto k = random_values(kKvHeads * kLength * kHeadDim, 2);
  const auto v = random_values(kKvHeads * kLength * kHeadDim, 3);
  const auto view = [](const std::vector<float>& values, int64_t heads) {
    return TensorView(values.data(), DType::f32, {1, heads, kLength, kHeadDim});
  };
  const auto row_view = [](const std::vector<float>& values) {
    return TensorView(values.data(), DType::f32, {1, kHeads, kLength});
  };

  // 1. One list for each kv head and query: [batch, kv_heads, q_len, kSelected].
  std::vector<int32_t> selected;
  for (int64_t kv_head = 0; kv_head < kKvHeads; ++kv_head) {
    const int64_t first_q = kv_head * (kHeads / kKvHeads) * kLength * kHeadDim;
    for (int64_t query = 0; query < kLength; ++query) {
      const auto keys = select(q.data() + first_q, k.data() + kv_head * kLength * kHeadDim, query);
      selected.insert(selected.end(), keys.begin(), keys.end());
    }
  }
  const IndexView indices(selected.data(), {1, kKvHeads, kLength, kSelected});
  std::printf("%s, %lld of them padding\n", to_string(indices).c_str(),
              static_cast<long long>(std::count(selected.begin(), selected.end(), -1)));

  // 2. Attention over them, and over all keys up to the query.
  std::vector<float> out(q.size()), lse(static_cast<size_t>(kHeads * kLength));
  std::vector<float> all_out(out.size()), all_lse(lse.size());
  gather_attention_forward(view(q, kHeads), view(k, kKvHeads), view(v, kKvHeads), indices,
                           view(out, kHeads), row_view(lse));
  attention_forward(view(q, kHeads), view(k, kKvHeads), view(v, kKvHeads),
                    plan(causal(), kLength, kLength), view(all_out, kHeads), row_view(all_lse));

  // 3. exp(lse) is the sum of exp(score): what the selection has of it.
  double kept = 0;
  bool is_whole_where_all_are_selected = true;
  for (size_t i = 0; i < lse.size(); ++i) {
    const double share = std::exp(double{lse[i]} - double{all_lse[i]});
    kept += share / static_cast<double>(lse.size());
    if (static_cast<int64_t>(i) % kLength >= kSelected) continue;
    is_whole_where_all_are_selected = is_whole_where_all_are_selected && std::abs(share - 1) < 1e-5;
  }
  std::printf("the first %lld queries see all that is before them: %s\n",
              static_cast<long long>(kSelected), is_whole_where_all_are_selected ? "yes" : "no");
  std::printf("on average a selection holds %.0f %% of the weight\n", 100 * kept);

  // 4. Gradients reach the keys that some query selected, and no others.
  const auto dout = random_values(kHeads * kLength * kHeadDim, 4);
  std::vector<float> dq(q.size()), dk(k.size()), dv(v.size());
  gather_attention_backward(view(dout, kHeads), view(q, kHeads), view(k, kKvHeads),
                            view(v, kKvHeads), view(out, kHeads), row_view(lse), indices,
                            {view(dq, kHeads), view(dk, kKvHeads), view(dv, kKvHeads), {}});
  bool is_only_there = true;
  for (int64_t kv_head = 0; kv_head < kKvHeads; ++kv_head) {
    const auto first = selected.begin() + kv_head * kLength * kSelected;
    for (int64_t key = 0; key < kLength; ++key) {
      const bool is_selected =
          std::find(first, first + kLength * kSelected, key) != first + kLength * kSelected;
      const float gradient = dv[static_cast<size_t>((kv_head * kLength + key) * kHeadDim)];
      is_only_there = is_only_there && (gradient != 0) == is_selected;
    }
  }
  std::printf("gradients reach selected keys alone: %s\n", is_only_there ? "yes" : "no");
  return is_whole_where_all_are_selected && is_only_there ? 0 : 1;
}
