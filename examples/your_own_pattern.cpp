// examples/your_own_pattern.cpp
// A pattern no leaf describes, written as a lambda: in a conversation, each speaker remembers all
// of their own words and the last two tokens of anybody. The lambda mixes with leaves, and every
// kernel follows it; compiling is slower, since it is asked about every pair, and the report says
// so.
#include <keyhole/keyhole.h>

#include <cmath>
#include <cstdio>
#include <vector>

using namespace keyhole;

int main() {
  // Who speaks at each position. The lambda must not depend on anything that changes later: the
  // plan keeps what it answered.
  const std::vector<int> speaker = {0, 0, 1, 1, 1, 0, 2, 2, 0, 1};
  const auto length = static_cast<int64_t>(speaker.size());
  const Pattern same_speaker = lambda(
      [speaker](Position q, Position k) {
        return speaker[static_cast<size_t>(q)] == speaker[static_cast<size_t>(k)];
      },
      "same_speaker");

  const Pattern pattern = causal() & (same_speaker | window(2));
  std::printf("%s", picture(pattern, length, length).c_str());
  std::printf("pairs: %lld\n", static_cast<long long>(count_pairs(pattern, length, length)));

  const Plan conversation = plan(pattern, length, length);
  std::printf("compiled pair by pair: %s\n",
              conversation.explain().draws_pair_by_pair ? "yes" : "no");

  // With q = 0 every attended key weighs the same: exp(lse) counts the keys of each query, which
  // tells without any tolerance that exactly the right pairs took part.
  const std::vector<float> q(speaker.size(), 0.0f), k(speaker.size(), 1.0f),
      v(speaker.size(), 1.0f);
  std::vector<float> out(speaker.size()), lse(speaker.size());
  const auto view = [&](const std::vector<float>& values) {
    return TensorView(values.data(), DType::f32, {1, 1, length, 1});
  };
  attention_forward(view(q), view(k), view(v), conversation, view(out),
                    TensorView(lse.data(), DType::f32, {1, 1, length}));
  std::printf("keys of each query:");
  for (float value : lse) std::printf(" %.0f", std::exp(value));
  std::printf("\n");
}
