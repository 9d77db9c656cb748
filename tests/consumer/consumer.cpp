// tests/consumer/consumer.cpp
// The smallest program that makes a pattern, a plan and one forward pass; prints what can be
// compared.
#include <keyhole/keyhole.h>

#include <cstdio>
#include <vector>

int main() {
  using namespace keyhole;
  const Pattern pattern = parse("causal & window(1)");
  const Plan causal_pairs = plan(pattern, 4, 4);

  // q = 0: every attended key weighs the same, so each output is the mean of its values 1, 2, 3, 4.
  const std::vector<float> q(4, 0.0f), k(4, 1.0f), v = {1, 2, 3, 4};
  std::vector<float> out(4), lse(4);
  const auto view = [](const std::vector<float>& values) {
    return TensorView(values.data(), DType::f32, {1, 1, 4, 1});
  };
  attention_forward(view(q), view(k), view(v), causal_pairs, view(out),
                    TensorView(lse.data(), DType::f32, {1, 1, 4}));
  std::printf("%s: %lld pairs\n", pattern.text().c_str(),
              static_cast<long long>(count_pairs(pattern, 4, 4)));
  std::printf("%.2f %.2f %.2f %.2f\n", out[0], out[1], out[2], out[3]);
}
