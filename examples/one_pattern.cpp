// examples/one_pattern.cpp
// One pattern from its text to attention: look at it, see what it costs, run it, compare with fp64.
#include <keyhole/keyhole.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

using namespace keyhole;

namespace {

std::vector<float> random_values(int64_t count, int seed) {
  std::mt19937 generator(static_cast<unsigned>(seed));
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = uniform(generator);
  return values;
}

}  // namespace

int main() {
  // 1. What attends to what: each token sees itself, the 63 before it, and the first four of all.
  const Pattern pattern = causal() & (window(63) | sinks(4));
  std::printf("%s\n\n", pattern.text().c_str());
  std::printf("The same idea at a size that fits here: causal & (window(2) | sinks(1))\n%s\n",
              picture(parse("causal & (window(2) | sinks(1))"), 8, 8).c_str());

  // 2. A plan for this shape: compiled once, used for every call with these lengths.
  const Shape shape{.batch = 1, .heads = 4, .q_len = 1000, .k_len = 1000, .offset = {}};
  const Plan sparse = plan(pattern, shape);
  const PlanReport report = sparse.explain();
  std::printf("\npairs that attend: %lld of %lld\n", static_cast<long long>(report.pairs),
              static_cast<long long>(report.all_pairs));

  // 3. Attention. q has four heads; k and v have two, each shared by two heads of q.
  const int64_t head_dim = 64;
  const auto q = random_values(4 * 1000 * head_dim, 1);
  const auto k = random_values(2 * 1000 * head_dim, 2);
  const auto v = random_values(2 * 1000 * head_dim, 3);
  std::vector<float> out(q.size()), expected(q.size());
  const TensorView q_view(q.data(), DType::f32, {1, 4, 1000, head_dim});
  const TensorView k_view(k.data(), DType::f32, {1, 2, 1000, head_dim});
  const TensorView v_view(v.data(), DType::f32, {1, 2, 1000, head_dim});
  attention_forward(q_view, k_view, v_view, sparse,
                    TensorView(out.data(), DType::f32, {1, 4, 1000, head_dim}));

  // 4. The reference asks the pattern pair by pair, in double precision, and never sees the plan.
  AttentionOptions by_definition;
  by_definition.backend = "reference";
  attention_forward(q_view, k_view, v_view, sparse,
                    TensorView(expected.data(), DType::f32, {1, 4, 1000, head_dim}), {},
                    by_definition);

  double largest_difference = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    largest_difference = std::max(largest_difference, std::abs(double{out[i]} - expected[i]));
  }
  const bool is_close = largest_difference < 1e-5;
  std::printf("differs from fp64 by less than 1e-5: %s\n", is_close ? "yes" : "no");
  return is_close ? 0 : 1;
}
