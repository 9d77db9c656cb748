// course/07_measuring/how_benchmarks_lie.cpp
// Seven ways to measure something else than you think, each beside the honest number, on one core.
#include <keyhole/keyhole.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <future>
#include <numeric>
#include <vector>

#include "common/stopwatch.h"
#include "forms.h"

namespace {

using course::best_milliseconds, course::Values, course::view;
using Numbers = std::vector<uint32_t>;

volatile uint32_t kept = 0;  // what is stored here counts as used

template <class Function>
double milliseconds(Function&& run) {  // of one call
  const auto begin = std::chrono::steady_clock::now();
  run();
  const auto end = std::chrono::steady_clock::now();
  return std::chrono::duration<double, std::milli>(end - begin).count();
}

uint32_t sum_of(const Numbers& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), uint32_t{0});
}

void attention(const course::Head& head, const keyhole::Plan& plan, Values& out) {
  keyhole::attention_forward(view(head.q), view(head.k), view(head.v), plan, view(out), {},
                             {.threads = 1});
}

void line(const char* what, double ms) { std::printf("   %-36s  %9.4f\n", what, ms); }

// The compiler removes a loop whose result nobody uses. What is left is two looks at the clock.
// Print something of the result, or store it in a volatile.
void unused_result() {
  const Numbers numbers(1 << 20, 1);
  std::printf("1. the sum of 1048576 numbers\n");
  line("nobody uses it", best_milliseconds([&] { static_cast<void>(sum_of(numbers)); }));
  line("it is kept", best_milliseconds([&] { kept = sum_of(numbers); }));
}

// The first call makes the tile lists of the plan and asks the system for memory. It happens once.
// Say whether it is in the figure.
void first_call(const course::Head& head) {
  const auto plan = keyhole::plan(keyhole::parse("causal & window(63)"), head.length, head.length);
  Values out(head.q.size());
  std::printf("2. attention, causal & window(63)\n");
  line("the first call", milliseconds([&] { attention(head, plan, out); }));
  line("the best of those after it", best_milliseconds([&] { attention(head, plan, out); }));
}

// A call that is repeated finds its data in the cache. In a model, something else ran in between.
// Overwrite more than the cache holds before each call, or say "warm".
void caches() {
  const Numbers numbers(128 << 10, 1);  // 512 KiB
  Numbers others(16 << 20, 1);          // 64 MiB
  double cold = 1e300;
  for (int i = 0; i < 10; ++i) {
    for (uint32_t& other : others) other += 3;
    kept = others[i];
    cold = std::min(cold, milliseconds([&] { kept = sum_of(numbers); }));
  }
  std::printf("3. the sum of 512 KiB\n");
  line("again and again", best_milliseconds([&] { kept = sum_of(numbers); }));
  line("each time after 64 MiB of others", cold);
}

// Other programs only ever add time. The mean counts that in, the best leaves it out, the median
// stands between. Each is honest if it is named and both sides get the same.
void mean_and_best(const course::Head& head) {
  const auto plan = keyhole::plan(keyhole::parse("causal & window(63)"), head.length, head.length);
  Values out(head.q.size());
  std::vector<double> ms(300);
  for (double& one : ms) one = milliseconds([&] { attention(head, plan, out); });
  std::sort(ms.begin() + 1, ms.end());  // all but the first
  std::printf("4. the same call 300 times\n");
  line("best", ms[1]);
  line("median", ms[150]);
  line("mean, with the first", std::accumulate(ms.begin(), ms.end(), 0.0) / 300);
  line("worst but the first", ms.back());
}

// Numbers below 1.2e-38 are denormal; many CPUs leave their fast path for them. exp(score - max) is
// one from -87 to -103: what attention costs can depend on the scores. Measure with data like that
// of the real call.
void denormals() {
  std::printf("5. 4096 weights times values\n");
  for (const float weight : {1e-3f, 1e-40f}) {
    const Values weights(4096, weight), values(4096, 0.5f);
    Values products(4096);
    const double ms = best_milliseconds([&] {
      for (int i = 0; i < 4096; ++i) products[i] = weights[i] * values[i];
      kept = products[0] > 0;
    });
    line(weight > 1e-38f ? "weights of 1e-3" : "weights of 1e-40", ms);
  }
}

// A causal mask leaves out half of the pairs. Who counts them all reports twice the rate. Count the
// pairs that attend, on both sides.
void unequal_work(const course::Head& head) {
  const auto plan = keyhole::plan(keyhole::causal(), head.length, head.length);
  Values out(head.q.size());
  const double ms = best_milliseconds([&] { attention(head, plan, out); });
  const auto report = plan.explain({64, 64}, course::kDim);
  std::printf("6. causal attention, GFLOP/s\n");
  line("all pairs counted", report.dense_flops_forward / ms / 1e6);
  line("pairs that attend", report.flops_forward / ms / 1e6);
  line("the one over the other", report.dense_flops_forward / report.flops_forward);
}

// A launch on a GPU returns before its kernel has begun, as this one before its thread has: the
// host's clock has seen the launch, no more. Wait for the end; clocks_gpu.cu shows the same there.
void asynchronous(const course::Head& head) {
  Values out(head.q.size());
  std::future<void> result;
  const auto work = [&] { course::flash(head, out); };
  const auto launch = [&] { result = std::async(std::launch::async, work); };
  std::printf("7. work for somebody else\n");
  line("until the launch returns", milliseconds(launch));
  result.wait();
  line("until the result is there", milliseconds([&] { launch(), result.wait(); }));
}

}  // namespace

int main() {
  const course::Head head(512);
  std::printf("milliseconds where nothing else is said; attention has %d tokens\n",
              static_cast<int>(head.length));
  unused_result();
  first_call(head);
  caches();
  mean_and_best(head);
  denormals();
  unequal_work(head);
  asynchronous(head);
}
