// course/06_entmax/splash.cpp
// Attention with entmax over a whole causal head, through the library: how many keys each query
// keeps, a row by this chapter's threshold, the gradients by differences, the time on one core
// beside softmax. The argument is the number of tokens.
#include <keyhole/keyhole.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "06_entmax/entmax.h"
#include "common/stopwatch.h"
#include "common/tensors.h"

using namespace keyhole;

namespace {

constexpr int64_t kHeadDim = 64;

// One causal head and its gradients, float or double.
template <class T>
struct Head {
  int64_t length;
  Normalizer normalizer;
  Plan causal_plan = plan(causal(), length, length);
  std::vector<T> q = values(1), k = values(2), v = values(3), dout = values(4);
  std::vector<T> out = values(0), dq = out, dk = out, dv = out;
  std::vector<T> lse = std::vector<T>(static_cast<size_t>(length));
  // The keys that have weight, for each query: at most 64, then -1. kLongSupport: it has more.
  std::vector<int32_t> support = std::vector<int32_t>(static_cast<size_t>(length * kSupportKeys));

  Head(int64_t tokens, Normalizer rule) : length(tokens), normalizer(rule) {}
  std::vector<T> values(unsigned seed) const {
    const auto random = course::random_values(static_cast<size_t>(length * kHeadDim), seed);
    return std::vector<T>(random.begin(), random.end());
  }
  TensorView view(const std::vector<T>& data) const {
    const DType dtype = sizeof(T) == 8 ? DType::f64 : DType::f32;
    if (data.size() == static_cast<size_t>(length)) return {data.data(), dtype, {1, 1, length}};
    return {data.data(), dtype, {1, 1, length, kHeadDim}};
  }
  AttentionOptions options() const {
    AttentionOptions result;
    result.normalizer = normalizer;
    result.threads = 1;
    if (!normalizer.is_plain_softmax()) {
      result.support = IndexView(support.data(), {1, 1, length, kSupportKeys});
    }
    return result;
  }
  void forward() {
    attention_forward(view(q), view(k), view(v), causal_plan, view(out), view(lse), options());
  }
  void backward() {
    attention_backward(view(dout), view(q), view(k), view(v), view(out), view(lse), causal_plan,
                       {view(dq), view(dk), view(dv), {}}, options());
  }
  // A query that has more keys counts as 64.
  int kept(int64_t query) const {
    const int32_t* const keys = &support[static_cast<size_t>(query * kSupportKeys)];
    if (keys[0] == kLongSupport) return kSupportKeys;
    return static_cast<int>(
        std::count_if(keys, keys + kSupportKeys, [](int key) { return key >= 0; }));
  }
  double at(const std::vector<T>& data, int64_t row, int64_t d) const {
    return double(data[static_cast<size_t>(row * kHeadDim + d)]);
  }
};

template <class T>
double dot(const std::vector<T>& a, const std::vector<T>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += double(a[i]) * double(b[i]);
  return sum;
}

// The slope of loss = out . dout along a random direction of `tensor`, by the gradient and by the
// difference of two forward passes: their relative error.
double gradient_error(Head<double>& head, std::vector<double>& tensor,
                      const std::vector<double>& gradient) {
  const std::vector<double> direction = head.values(9), kept = tensor;
  const double h = 1e-5;
  double expected = 0;
  for (const int side : {-1, 1}) {
    for (size_t i = 0; i < tensor.size(); ++i) tensor[i] = kept[i] + side * h * direction[i];
    head.forward();
    expected += side * dot(head.out, head.dout) / (2 * h);
  }
  tensor = kept;
  return std::abs(dot(gradient, direction) - expected) / std::abs(expected);
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t length = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 1024;
  Head<float> head(length, entmax(1.5));
  head.forward();

  std::printf("first last mean_kept most_kept\n");
  int64_t pairs = 0;
  for (int64_t first = 0; first < length; first = std::max<int64_t>(64, 2 * first)) {
    const int64_t end = std::min(length, std::max<int64_t>(64, 2 * first));
    int64_t sum = 0;
    int most = 0;
    for (int64_t query = first; query < end; ++query) {
      sum += head.kept(query);
      most = std::max(most, head.kept(query));
    }
    pairs += sum;
    std::printf("%5lld %4lld %9.1f %9d\n", static_cast<long long>(first),
                static_cast<long long>(end - 1), double(sum) / double(end - first), most);
  }
  std::printf("\n%lld of %lld visible pairs keep weight\n", static_cast<long long>(pairs),
              static_cast<long long>(length * (length + 1) / 2));

  // The last row by this chapter's entmax.
  std::vector<double> scores(static_cast<size_t>(length)), row(kHeadDim);
  for (int64_t key = 0; key < length; ++key) {
    double& score = scores[static_cast<size_t>(key)];
    for (int64_t d = 0; d < kHeadDim; ++d)
      score += head.at(head.q, length - 1, d) * head.at(head.k, key, d);
    score /= std::sqrt(double{kHeadDim});
  }
  const std::vector<double> weights = course::entmax(scores, 1.5);
  for (int64_t i = 0; i < length * kHeadDim; ++i) {
    const int64_t key = i / kHeadDim, d = i % kHeadDim;
    row[static_cast<size_t>(d)] += weights[static_cast<size_t>(key)] * head.at(head.v, key, d);
  }
  const auto out = std::vector<float>(head.out.end() - kHeadDim, head.out.end());
  std::printf("last row: error %.0e\n", course::largest_difference(row, out));

  Head<double> exact(128, entmax(1.5));
  exact.forward();
  exact.backward();
  std::printf("gradients against differences: dq %.0e, dk %.0e, dv %.0e\n",
              gradient_error(exact, exact.q, exact.dq), gradient_error(exact, exact.k, exact.dk),
              gradient_error(exact, exact.v, exact.dv));

  Head<float> dense(length, softmax());
  std::printf("\nnormalizer forward_ms backward_ms\n");
  for (Head<float>* const timed : {&dense, &head}) {
    const double forward = course::best_milliseconds([&] { timed->forward(); });
    const double backward = course::best_milliseconds([&] { timed->backward(); });
    std::printf("%s %.2f %.2f\n", to_string(timed->normalizer).c_str(), forward, backward);
  }
}
