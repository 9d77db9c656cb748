// examples/one_pattern.cpp
// One pattern from its text to attention: look at it, see what it costs, run it, and check one row
// by the definition, pair by pair, in double precision.
#include <keyhole/keyhole.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

using namespace keyhole;

namespace {

constexpr int64_t kLength = 1000, kHeadDim = 64, kHeads = 4, kKvHeads = 2;

std::vector<float> random_values(int64_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(generator()) / 2147483648.0f - 1;
  return values;
}

// softmax(q . k / sqrt(head_dim)) v over the keys that `pattern` allows: one row of the output.
std::vector<double> row_by_definition(const HeadPattern& pattern, int64_t query, const float* q,
                                      const float* k, const float* v) {
  std::vector<double> row(kHeadDim);
  double sum = 0;
  for (int64_t key = 0; key < kLength; ++key) {
    if (!pattern.allows(query, key)) continue;
    double score = 0;
    for (int64_t d = 0; d < kHeadDim; ++d) {
      score += double{q[query * kHeadDim + d]} * k[key * kHeadDim + d];
    }
    const double weight = std::exp(score / std::sqrt(double{kHeadDim}));
    sum += weight;
    for (int64_t d = 0; d < kHeadDim; ++d) {
      row[static_cast<size_t>(d)] += weight * v[key * kHeadDim + d];
    }
  }
  for (double& value : row) value /= sum;
  return row;
}

}  // namespace

int main() {
  // 1. What attends to what: each token sees itself, the 63 before it, and the first four of all.
  const Pattern pattern = causal() & (window(63) | sinks(4));
  std::printf("%s\n\n", pattern.text().c_str());
  std::printf("The same idea at a size that fits here: causal & (window(2) | sinks(1))\n%s\n",
              picture(parse("causal & (window(2) | sinks(1))"), 8, 8).c_str());

  // 2. A plan for this shape: compiled once, used for every call with these lengths.
  const Shape shape{.batch = 1, .heads = kHeads, .q_len = kLength, .k_len = kLength, .offset = {}};
  const Plan sparse = plan(pattern, shape);
  const PlanReport report = sparse.explain();
  std::printf("pairs that attend: %lld of %lld\n", static_cast<long long>(report.pairs),
              static_cast<long long>(report.all_pairs));

  // 3. Attention. q has four heads; k and v have two, each shared by two neighbouring heads of q.
  const auto q = random_values(kHeads * kLength * kHeadDim, 1);
  const auto k = random_values(kKvHeads * kLength * kHeadDim, 2);
  const auto v = random_values(kKvHeads * kLength * kHeadDim, 3);
  std::vector<float> out(q.size());
  const auto view = [](const std::vector<float>& values, int64_t heads) {
    return TensorView(values.data(), DType::f32, {1, heads, kLength, kHeadDim});
  };
  attention_forward(view(q, kHeads), view(k, kKvHeads), view(v, kKvHeads), sparse,
                    view(out, kHeads));

  // 4. Row 700 of the last head, which reads the last head of k and v.
  const int64_t query = 700, head = kHeads - 1, head_size = kLength * kHeadDim;
  const float* const k_head = k.data() + (kKvHeads - 1) * head_size;
  const float* const v_head = v.data() + (kKvHeads - 1) * head_size;
  const auto expected = row_by_definition(pattern.for_head(shape, 0, head), query,
                                          q.data() + head * head_size, k_head, v_head);
  const float* const got = out.data() + head * head_size + query * kHeadDim;
  double largest_difference = 0;
  for (size_t d = 0; d < expected.size(); ++d) {
    largest_difference = std::max(largest_difference, std::abs(got[d] - expected[d]));
  }
  const bool is_close = largest_difference < 1e-6;
  std::printf("row %lld differs from its definition by less than 1e-6: %s\n",
              static_cast<long long>(query), is_close ? "yes" : "no");
  return is_close ? 0 : 1;
}
