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

void line(const char* what, double value) { std::printf("   %-36s  %9.4f\n", what, value); }

// The compiler removes a loop whose result nobody uses. What is left is two looks at the clock.
// Print something of the result, or store it in a volatile.
void unused_result() {
  const Numbers numbers(1 << 20, 1);
  std::printf("1. the sum of 1048576 numbers\n");
  line("nobody uses it", best_milliseconds([&] { static_cast<void>(sum_of(numbers)); }));
  line("it is kept", best_milliseconds([&] { kept = sum_of(numbers); }));
}

// The first call makes the tile lists of the plan and asks the system for memory. That happens only
// once. Say whether your figure contains it.
void first_call(const course::Head& head) {
  const auto plan = keyhole::plan(keyhole::parse("causal & window(63)"), head.length, head.length);
  Values out(head.q.size());
  std::printf("2. attention, causal & window(63)\n");
  line("the first call", milliseconds([&] { attention(head, plan, out); }));
  line("the best of those after it", best_milliseconds([&] { attention(head, plan, out); }));
}

// A call that is repeated finds its data in the cache. In a model, other layers run in between.
// Read and write more than the cache holds before each call, or say "warm".
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

// Other programs can only add time. The mean contains what they add, the best does not, the median
// contains little of it. Each is honest if you say which it is and treat both sides alike.
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

// Numbers below 1.2e-38 are denormal, and many CPUs need far longer for them. exp(score - max) is
// denormal where score - max is from -103 to -87: the time of attention can depend on the scores.
// Measure with data like that of the real call.
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

// A causal mask leaves out half of the pairs. If all are counted, the rate seems twice as high.
// Count the pairs that attend, for both sides of a comparison.
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

// A launch on a GPU returns before its kernel is done, as std::async does before the work is: the
// host's clock has seen only the launch. Wait for the end. clocks_gpu.cu shows the same on a GPU.
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
