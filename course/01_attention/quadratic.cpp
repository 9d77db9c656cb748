// course/01_attention/quadratic.cpp [LONGEST]
// Time and memory of attention as the sequence grows, for one head of head_dim 64 on one thread:
// the definition with its matrix of weights, and Keyhole, which never holds that matrix.
#include <keyhole/keyhole.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "common/stopwatch.h"
#include "common/tensors.h"

namespace {

constexpr size_t kHeadDim = 64;

struct Head {
  explicit Head(size_t tokens)
      : length(tokens),
        q(course::random_values(length * kHeadDim, 1)),
        k(course::random_values(length * kHeadDim, 2)),
        v(course::random_values(length * kHeadDim, 3)),
        out(length * kHeadDim) {}
  size_t length;
  std::vector<float> q, k, v, out;
};

// One pass over the whole matrix for each step, as three separate kernels would do it. The loops
// use pointers because the project is built with checks of every index of a vector.
void naive(Head& head) {
  const size_t length = head.length, d = kHeadDim;
  std::vector<float> matrix(length * length);
  float* const weights = matrix.data();
  float* const out = head.out.data();
  const float *const q = head.q.data(), *const k = head.k.data(), *const v = head.v.data();
  const float scale = 1 / std::sqrt(static_cast<float>(d));
  for (size_t i = 0; i < length; ++i) {
    for (size_t j = 0; j < length; ++j) {
      float product = 0;
      for (size_t x = 0; x < d; ++x) product += q[i * d + x] * k[j * d + x];
      weights[i * length + j] = scale * product;
    }
  }
  for (size_t i = 0; i < length; ++i) {
    float* const row = weights + i * length;
    const float largest = *std::max_element(row, row + length);
    float sum = 0;
    for (size_t j = 0; j < length; ++j) {
      row[j] = std::exp(row[j] - largest);
      sum += row[j];
    }
    for (size_t j = 0; j < length; ++j) row[j] /= sum;
  }
  std::fill_n(out, length * d, 0.0f);
  for (size_t i = 0; i < length; ++i) {
    for (size_t j = 0; j < length; ++j) {
      const float weight = weights[i * length + j];
      for (size_t x = 0; x < d; ++x) out[i * d + x] += weight * v[j * d + x];
    }
  }
}

void with_keyhole(Head& head, const keyhole::Plan& plan) {
  using namespace keyhole;
  const auto view = [&](const std::vector<float>& x) {
    return TensorView(x.data(), DType::f32, {1, 1, int64_t(head.length), int64_t(kHeadDim)});
  };
  AttentionOptions options;
  options.threads = 1;
  options.backend = "cpu";
  attention_forward(view(head.q), view(head.k), view(head.v), plan, view(head.out), {}, options);
}

// How much memory `run` takes at its peak, in MiB, by what Linux notes of the process: the peak
// since it was last reset, less what was there before. 0 where Linux does not tell.
template <class Function>
double peak_mib(Function&& run) {
  const auto kib_of = [](const char* name) {
    long long kib = 0;
    char line[256], format[32];
    std::snprintf(format, sizeof format, "%s: %%lld", name);
    if (std::FILE* file = std::fopen("/proc/self/status", "r")) {
      while (std::fgets(line, sizeof line, file) && std::sscanf(line, format, &kib) != 1) {
      }
      std::fclose(file);
    }
    return kib;
  };
  if (std::FILE* file = std::fopen("/proc/self/clear_refs", "w")) {
    std::fputs("5", file);  // resets the peak
    std::fclose(file);
  }
  const long long before = kib_of("VmRSS");
  run();
  return static_cast<double>(std::max(kib_of("VmHWM") - before, 0LL)) / 1024;
}

}  // namespace

int main(int count, char** arguments) {
  const size_t longest = count > 1 ? std::strtoul(arguments[1], nullptr, 10) : 2048;
  std::printf("%6s %8s %11s %11s %11s %9s %11s\n", "length", "gflop", "tensors_mib", "weights_mib",
              "naive_ms", "naive_mib", "keyhole_ms");
  double largest = 0;
  std::vector<double> times;
  for (size_t length = 128; length <= longest; length *= 2) {
    Head ours(length), theirs(length);
    const keyhole::Plan plan = keyhole::plan(keyhole::dense(), int64_t(length), int64_t(length));
    const double mib = 1024 * 1024, pairs = static_cast<double>(length * length);
    const double naive_mib = peak_mib([&] { naive(ours); });
    const double naive_ms = course::best_milliseconds([&] { naive(ours); }, 0.02, 1);
    const double keyhole_ms =
        course::best_milliseconds([&] { with_keyhole(theirs, plan); }, 0.1, 3);
    largest = std::max(largest, course::largest_difference(ours.out, theirs.out));
    times.push_back(naive_ms);
    std::printf("%6zu %8.4f %11.3f %11.4f %11.3f %9.2f %11.3f\n", length, 4e-9 * pairs * kHeadDim,
                4 * 4 * static_cast<double>(length * kHeadDim) / mib, 4 * pairs / mib, naive_ms,
                naive_mib, keyhole_ms);
  }
  std::printf("\nlargest difference between the two: %.1e\n", largest);
  if (times.size() > 1) {
    std::printf("the last doubling of the length made the naive loops %.1f times as slow\n",
                times.back() / times[times.size() - 2]);
  }
}
