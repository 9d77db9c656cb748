// course/07_measuring/roofline.cpp
// What one core of this CPU can do at most, in multiply-adds and in bytes a second, and where forms
// of attention stand below these two limits. `roofline 2048` takes another number of tokens.
#include <keyhole/keyhole.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "common/stopwatch.h"
#include "forms.h"

namespace {

using course::best_milliseconds, course::kDim, course::Values, course::view;

// Twelve chains of multiply-adds, in registers of so many bytes. In a chain, each waits for the one
// before. A core starts two in a cycle, and each takes four: it needs eight chains or more to be
// busy. They begin with different numbers, or the compiler would compute only one. A macro, because
// a template cannot say for which instructions it is compiled.
#define COURSE_CHAINS(target, name, bytes)                       \
  target float name(int64_t steps) {                             \
    typedef float Vector __attribute__((vector_size(bytes)));    \
    Vector sums[12], total = {};                                 \
    for (int i = 0; i < 12; ++i) sums[i] = total + float(3 + i); \
    for (int64_t step = 0; step < steps; ++step)                 \
      for (Vector & sum : sums) sum = sum * 0.5f + 1.0f;         \
    for (const Vector& sum : sums) total += sum;                 \
    return total[0] + total[bytes / 4 - 1];                      \
  }
COURSE_CHAINS([[]], chains_of_4, 16)
#if defined(__x86_64__)
COURSE_CHAINS([[gnu::target("avx2,fma")]], chains_of_8, 32)
COURSE_CHAINS([[gnu::target("avx512f")]], chains_of_16, 64)
#endif

// FLOPs a second, with the widest registers that this CPU has.
double most_flops() {
  float (*chains)(int64_t) = chains_of_4;
  int lanes = 4;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    chains = chains_of_8, lanes = 8;
  }
  if (__builtin_cpu_supports("avx512f")) chains = chains_of_16, lanes = 16;
#endif
  const int64_t steps = 500'000;
  volatile float kept = 0;  // nobody reads it, but the compiler must compute it
  const double ms = best_milliseconds([&] { kept = chains(steps); }, /*seconds=*/0.2);
  return 2.0 * 12 * lanes * static_cast<double>(steps) / (ms / 1e3);
}

struct Limits {
  double flops, bytes;  // a second
};

Limits measure_limits() {
  const std::size_t size = std::size_t{64} << 20;  // more than the caches hold
  Values numbers(size / 4, 1.0f);
  const void* volatile found = numbers.data();
  const double flops = most_flops();
  // Reads all bytes in search of one that is not there; then reads all numbers and writes them
  // back.
  const double read_ms = best_milliseconds([&] { found = std::memchr(numbers.data(), 7, size); });
  const double update_ms = best_milliseconds([&] {
    for (float& number : numbers) number *= 2;
  });
  const double read = 1e3 * size / read_ms, update = 2e3 * size / update_ms;
  const double bytes = std::max(read, update);
  std::printf("%-13s  %7s  %s\n", "limit", "value", "unit");
  std::printf("%-13s  %7.1f  GFLOP/s\n", "multiply_adds", flops / 1e9);
  std::printf("%-13s  %7.1f  GB/s\n", "read", read / 1e9);
  std::printf("%-13s  %7.1f  GB/s\n", "update", update / 1e9);
  std::printf("%-13s  %7.1f  FLOP/byte\n\n", "ridge", flops / bytes);
  return {flops, bytes};
}

// One point below the roof: FLOPs and bytes are counted, not measured; the time is of the best run.
void print_point(const Limits& limits, const char* form, double flops, double bytes, double ms) {
  const double intensity = flops / bytes, rate = flops / (ms / 1e3);
  const double roof = std::min(limits.flops, intensity * limits.bytes);
  std::printf("%-9s  %7.3f  %7.2f  %13.2f  %8.3f  %11.2f  %7.2f  %5.2f\n", form, flops / 1e9,
              bytes / 1e6, intensity, ms, rate / 1e9, roof / 1e9, rate / roof);
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t length = (argc > 1 ? std::max(64, std::atoi(argv[1])) : 1024) / 64 * 64;
  const course::Head head(length);
  Values weights(length * length), first(length * kDim), out(first);
  const Limits limits = measure_limits();

  // Once each, of float: the least that any form moves. Naive writes its matrix, reads and writes
  // it for softmax, and reads it for the output.
  const double tensors = 4.0 * length * kDim * 4, matrix = 4.0 * length * length;
  const double flops = 4.0 * length * length * kDim;
  const auto library = [&](const Values& q, const Values& k, const Values& v,
                           const keyhole::Plan& plan) {
    keyhole::attention_forward(view(q), view(k), view(v), plan, view(out), {}, {.threads = 1});
  };
  std::printf("%-9s  %7s  %7s  %13s  %8s  %11s  %7s  %5s\n", "form", "GFLOP", "MB", "FLOP_per_byte",
              "ms", "GFLOP_per_s", "roof", "share");
  print_point(limits, "naive", flops, tensors + 4 * matrix,
              best_milliseconds([&] { course::naive(head, weights, first); }));
  print_point(limits, "flash", flops, tensors,
              best_milliseconds([&] { course::flash(head, out); }));
  double error = course::largest_difference(first, out);
  const keyhole::Plan dense = keyhole::plan(keyhole::dense(), length, length);
  print_point(limits, "keyhole", flops, tensors,
              best_milliseconds([&] { library(head.q, head.k, head.v, dense); }));
  error = std::max(error, course::largest_difference(first, out));
  const keyhole::Plan window =
      keyhole::plan(keyhole::causal() & keyhole::window(127), length, length);
  print_point(limits, "window", window.explain({64, 64}, kDim).flops_forward, tensors,
              best_milliseconds([&] { library(head.q, head.k, head.v, window); }));

  // One query of a model that is writing text: every key and value is read for it, and used once.
  const int64_t keys = 128 * 1024;
  Values k(keys * kDim), v(keys * kDim);
  for (std::size_t i = 0; i < k.size(); ++i) k[i] = v[i] = head.k[i % head.k.size()];
  const Values q(head.q.begin(), head.q.begin() + kDim);
  out.resize(kDim);
  const keyhole::Plan one_query = keyhole::plan(keyhole::causal(), 1, keys);
  print_point(limits, "one_query", 4.0 * keys * kDim, 2.0 * keys * kDim * 4,
              best_milliseconds([&] { library(q, k, v, one_query); }));
  std::printf("\nlargest difference from naive: %.1e\n", error);
}
