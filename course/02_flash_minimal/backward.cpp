// course/02_flash_minimal/backward.cpp
// The backward pass without a matrix of weights: every weight is computed again from q, k and lse.
// In fp64 against finite differences of the forward pass, and against Keyhole.
#include <keyhole/keyhole.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "common/tensors.h"

namespace {

constexpr size_t kLength = 40, kHeadDim = 16, kCount = kLength * kHeadDim;
using Values = std::vector<double>;  // fp64, so that finite differences can be trusted

const double kScale = 1 / std::sqrt(static_cast<double>(kHeadDim));

double dot(const Values& a, size_t row_of_a, const Values& b, size_t row_of_b) {
  double sum = 0;
  for (size_t x = 0; x < kHeadDim; ++x)
    sum += a[row_of_a * kHeadDim + x] * b[row_of_b * kHeadDim + x];
  return sum;
}

// Row `to` of a += factor * row `from` of b.
void add_row(Values& a, size_t to, double factor, const Values& b, size_t from) {
  for (size_t x = 0; x < kHeadDim; ++x) a[to * kHeadDim + x] += factor * b[from * kHeadDim + x];
}

struct Inputs {
  Values q, k, v;
};
struct Result {
  Values out = Values(kCount), lse = Values(kLength);
};

Result forward(const Inputs& in) {
  Result result;
  Values weights(kLength);
  for (size_t i = 0; i < kLength; ++i) {
    double sum = 0;
    for (size_t j = 0; j < kLength; ++j) {
      weights[j] = std::exp(kScale * dot(in.q, i, in.k, j));  // small scores: no maximum needed
      sum += weights[j];
    }
    for (size_t j = 0; j < kLength; ++j) add_row(result.out, i, weights[j] / sum, in.v, j);
    result.lse[i] = std::log(sum);
  }
  return result;
}

// The loss is the sum of dout * out, so dout is its gradient by out.
double loss(const Inputs& in, const Values& dout) {
  const Result result = forward(in);
  double sum = 0;
  for (size_t i = 0; i < kCount; ++i) sum += dout[i] * result.out[i];
  return sum;
}

Inputs backward(const Inputs& in, const Result& result, const Values& dout) {
  Inputs gradient{Values(kCount), Values(kCount), Values(kCount)};
  for (size_t i = 0; i < kLength; ++i) {
    // The softmax of a row couples its scores. All of that is in one number: the sum over its keys
    // of weight * (dout . v), which is dout . out.
    const double delta = dot(dout, i, result.out, i);
    for (size_t j = 0; j < kLength; ++j) {
      const double weight = std::exp(kScale * dot(in.q, i, in.k, j) - result.lse[i]);  // again
      const double dweight = dot(dout, i, in.v, j);
      const double dscore = weight * (dweight - delta);
      add_row(gradient.v, j, weight, dout, i);
      add_row(gradient.q, i, kScale * dscore, in.k, j);
      add_row(gradient.k, j, kScale * dscore, in.q, i);
    }
  }
  return gradient;
}

// (loss(x + h) - loss(x - h)) / 2h for every number of one of the inputs.
Values slopes(Inputs& in, Values& parameters, const Values& dout) {
  const double h = 1e-5;
  Values result;
  for (double& parameter : parameters) {
    const double kept = parameter;
    parameter = kept + h;
    const double above = loss(in, dout);
    parameter = kept - h;
    const double below = loss(in, dout);
    parameter = kept;
    result.push_back((above - below) / (2 * h));
  }
  return result;
}

Inputs with_keyhole(const Inputs& in, const Result& result, const Values& dout) {
  using namespace keyhole;
  Inputs gradient{Values(kCount), Values(kCount), Values(kCount)};
  const auto view = [](const Values& x) {
    return TensorView(x.data(), DType::f64, {1, 1, kLength, kHeadDim});
  };
  attention_backward(view(dout), view(in.q), view(in.k), view(in.v), view(result.out),
                     TensorView(result.lse.data(), DType::f64, {1, 1, kLength}),
                     plan(dense(), kLength, kLength),
                     {view(gradient.q), view(gradient.k), view(gradient.v), {}});
  return gradient;
}

Values random_values(unsigned seed) {
  const std::vector<float> values = course::random_values(kCount, seed);
  return Values(values.begin(), values.end());
}

}  // namespace

int main() {
  Inputs in{random_values(1), random_values(2), random_values(3)};
  const Values dout = random_values(4);
  const Result result = forward(in);
  const Inputs ours = backward(in, result, dout), theirs = with_keyhole(in, result, dout);

  std::printf("%zu tokens, head_dim %zu, fp64: largest difference from\n", kLength, kHeadDim);
  std::printf("%10s %20s %10s %12s\n", "gradient", "finite_differences", "keyhole",
              "largest_value");
  const auto report = [&](const char* name, Values Inputs::* which) {
    const Values& gradient = ours.*which;
    std::printf("%10s %20.1e %10.1e %12.3f\n", name,
                course::largest_difference(gradient, slopes(in, in.*which, dout)),
                course::largest_difference(gradient, theirs.*which),
                course::largest_difference(gradient, Values(kCount)));
  };
  report("dq", &Inputs::q);
  report("dk", &Inputs::k);
  report("dv", &Inputs::v);

  // A way to see an error that finite differences on a few numbers would miss: adding one number to
  // all scores of a row changes no weight, so the gradients of the scores of a row sum to 0.
  double largest = 0;
  for (size_t i = 0; i < kLength; ++i) {
    double sum = 0;
    for (size_t j = 0; j < kLength; ++j) {
      sum += std::exp(kScale * dot(in.q, i, in.k, j) - result.lse[i]) *
             (dot(dout, i, in.v, j) - dot(dout, i, result.out, i));
    }
    largest = std::max(largest, std::abs(sum));
  }
  std::printf("sum of the score gradients of a row: at most %.0e\n", largest);
}
