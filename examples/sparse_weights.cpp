// examples/sparse_weights.cpp
// alpha-entmax and top-K: attention whose weights are exactly 0 for most keys, forward and
// backward. The forward pass says which keys have weight; the backward pass follows them.
#include <keyhole/keyhole.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

using namespace keyhole;

namespace {

constexpr int64_t kHeads = 4, kLength = 512, kHeadDim = 64;
constexpr double kScale = 0.5;  // sharp, as in a layer that has learned: a few keys stand out

using Values = std::vector<float>;

TensorView view(const Values& values) {
  return {values.data(), DType::f32, {1, kHeads, kLength, kHeadDim}};
}
TensorView rows(const Values& values) { return {values.data(), DType::f32, {1, kHeads, kLength}}; }

// Multiples of 1/8, so that every score below is exact, whatever adds it up.
Values random_values(unsigned seed) {
  std::mt19937 generator(seed);
  Values values(kHeads * kLength * kHeadDim);
  for (float& value : values) value = static_cast<float>(generator() % 17) / 8.0f - 1;
  return values;
}

// The support of a query: the keys that have weight, ascending, then -1. A query with more than
// kSupportKeys of them has kLongSupport as its first entry and no list.
int64_t count_keys(const int32_t* keys) {
  if (keys[0] == kLongSupport) return kSupportKeys;  // or more
  return std::find(keys, keys + kSupportKeys, -1) - keys;
}

}  // namespace

int main() {
  const Values q = random_values(1), k = random_values(2), v = random_values(3);
  const Plan visible = plan(causal(), kLength, kLength);
  Values out(q.size()), lambda(kHeads * kLength);
  std::vector<int32_t> support(kHeads * kLength * kSupportKeys);

  // 1. Four ways to weigh the same scores.
  for (const Normalizer& normalizer :
       {entmax(1.5), entmax(1.75), entmax(1.5, /*top=*/8), softmax(/*top=*/8)}) {
    AttentionOptions options;
    options.normalizer = normalizer, options.scale = kScale;
    options.support = IndexView(support.data(), {1, kHeads, kLength, kSupportKeys});
    attention_forward(view(q), view(k), view(v), visible, view(out), rows(lambda), options);
    int64_t kept = 0;
    for (int64_t row = 0; row < kHeads * kLength; ++row) {
      kept += count_keys(support.data() + row * kSupportKeys);
    }
    std::printf("%-18s keeps %4.1f of %.1f keys of a query\n", to_string(normalizer).c_str(),
                static_cast<double>(kept) / (kHeads * kLength), (kLength + 1) / 2.0);
  }

  // 2. A training step: the backward pass takes what the forward pass left, and looks for no key
  // again. lambda stands where softmax has the log-sum-exp.
  AttentionOptions options;
  options.normalizer = entmax(1.5), options.scale = kScale;
  options.support = IndexView(support.data(), {1, kHeads, kLength, kSupportKeys});
  attention_forward(view(q), view(k), view(v), visible, view(out), rows(lambda), options);
  const Values dout = random_values(4);
  Values dq(q.size()), dk(q.size()), dv(q.size());
  const Gradients gradients{view(dq), view(dk), view(dv), {}};
  attention_backward(view(dout), view(q), view(k), view(v), view(out), rows(lambda), visible,
                     gradients, options);

  // 3. Keys that no query gives weight have no gradient.
  for (int64_t head = 0; head < kHeads; ++head) {
    const int32_t* const keys = support.data() + head * kLength * kSupportKeys;
    int64_t unused = 0, unmoved = 0;
    for (int64_t key = 0; key < kLength; ++key) {
      const float* const gradient = dv.data() + (head * kLength + key) * kHeadDim;
      unused += std::count(keys, keys + kLength * kSupportKeys, key) == 0 ? 1 : 0;
      unmoved += std::count(gradient, gradient + kHeadDim, 0.0f) == kHeadDim ? 1 : 0;
    }
    std::printf("head %d: %d keys have weight for no query, %d have no gradient\n",
                static_cast<int>(head), static_cast<int>(unused), static_cast<int>(unmoved));
  }
}
