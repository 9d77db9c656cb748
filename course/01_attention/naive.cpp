// course/01_attention/naive.cpp
// Attention by its definition, in plain C++. First four tokens whose numbers you can check by hand,
// then 256 tokens in fp32 against the same loops in fp64, and against Keyhole.
#include <keyhole/keyhole.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "common/tensors.h"

namespace {

// out = softmax(q k' / sqrt(d)) v for one head. q and k are [length, d], v and out are [length,
// dv], weights is [length, length]: the matrix that makes long sequences expensive. T is the type
// of every number: float, or double to see what float loses.
template <class T>
void attention(const std::vector<T>& q, const std::vector<T>& k, const std::vector<T>& v,
               size_t length, size_t d, size_t dv, std::vector<T>& weights, std::vector<T>& out) {
  const T scale = 1 / std::sqrt(static_cast<T>(d));
  weights.assign(length * length, 0);
  out.assign(length * dv, 0);
  for (size_t i = 0; i < length; ++i) {
    T* row = &weights[i * length];
    // 1. Scores: how well query i fits every key.
    T largest = -std::numeric_limits<T>::infinity();
    for (size_t j = 0; j < length; ++j) {
      T product = 0;
      for (size_t x = 0; x < d; ++x) product += q[i * d + x] * k[j * d + x];
      row[j] = scale * product;
      largest = std::max(largest, row[j]);
    }
    // 2. Softmax: positive weights whose sum is 1. Subtracting the maximum changes no weight, and
    //    keeps exp() below its limits (overflow.cpp).
    T sum = 0;
    for (size_t j = 0; j < length; ++j) {
      row[j] = std::exp(row[j] - largest);
      sum += row[j];
    }
    for (size_t j = 0; j < length; ++j) row[j] /= sum;
    // 3. Output: the mean of the values, by these weights.
    for (size_t j = 0; j < length; ++j) {
      for (size_t x = 0; x < dv; ++x) out[i * dv + x] += row[j] * v[j * dv + x];
    }
  }
}

// Four features: person, animal, verb, unused. A key says what its token is, a query what its token
// looks for. The value of each token is one number.
void four_tokens() {
  const char* const tokens[4] = {"Anna", "sees", "her", "cat"};
  const std::vector<double> k = {2, 0, 0, 0,   // Anna: a person
                                 0, 0, 2, 0,   // sees: a verb
                                 1, 0, 0, 0,   // her: a person, less clearly
                                 0, 2, 0, 0};  // cat: an animal
  const std::vector<double> q = {0, 0, 0, 0,   // Anna looks for nothing in particular
                                 2, 2, 0, 0,   // sees: who, and whom?
                                 4, 0, 0, 0,   // her: which person?
                                 0, 0, 2, 0};  // cat: what happens to it?
  const std::vector<double> v = {10, 20, 30, 40};
  std::vector<double> weights, out;
  attention(q, k, v, 4, 4, 1, weights, out);
  std::printf("weights");
  for (const char* token : tokens) std::printf(" %7s", token);
  std::printf("      sum      out\n");
  for (size_t i = 0; i < 4; ++i) {
    std::printf("%-7s", tokens[i]);
    double sum = 0;
    for (size_t j = 0; j < 4; ++j) {
      std::printf(" %7.4f", weights[i * 4 + j]);
      sum += weights[i * 4 + j];
    }
    std::printf("  %7.4f  %7.3f\n", sum, out[i]);
  }
}

// Keyhole's attention of the same head: every query attends to every key.
template <class T>
std::vector<T> with_keyhole(const std::vector<T>& q, const std::vector<T>& k,
                            const std::vector<T>& v, int64_t length, int64_t d) {
  using namespace keyhole;
  const DType dtype = sizeof(T) == 8 ? DType::f64 : DType::f32;
  std::vector<T> out(q.size());
  const auto view = [&](const std::vector<T>& x) {
    return TensorView(x.data(), dtype, {1, 1, length, d});
  };
  attention_forward(view(q), view(k), view(v), plan(dense(), length, length), view(out));
  return out;
}

}  // namespace

int main() {
  four_tokens();

  const size_t length = 256, d = 64;
  const std::vector<float> q = course::random_values(length * d, 1);
  const std::vector<float> k = course::random_values(length * d, 2);
  const std::vector<float> v = course::random_values(length * d, 3);
  const std::vector<double> q64(q.begin(), q.end()), k64(k.begin(), k.end()),
      v64(v.begin(), v.end());
  std::vector<float> weights, out;
  std::vector<double> weights64, exact;
  attention(q, k, v, length, d, d, weights, out);
  attention(q64, k64, v64, length, d, d, weights64, exact);

  std::printf("\n%zu tokens, head_dim %zu: largest difference from the loops in fp64\n", length, d);
  std::printf("  these loops in fp32  %.1e\n", course::largest_difference(out, exact));
  std::printf("  keyhole in fp32      %.1e\n",
              course::largest_difference(with_keyhole(q, k, v, length, d), exact));
  std::printf("  keyhole in fp64      %.1e\n",
              course::largest_difference(with_keyhole(q64, k64, v64, length, d), exact));
  std::printf("multiply-adds: %zu for the scores, %zu for the output: %.1f MFLOP\n",
              length * length * d, length * length * d, 4e-6 * length * length * d);
  std::printf("numbers kept:  %zu weights, beside %zu in q, k, v and out\n", weights.size(),
              q.size() + k.size() + v.size() + out.size());
}
