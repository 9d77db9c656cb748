// cli/bench/timing.cpp
// Takes calls, gives the median and spread of their times.
#include "cli/bench/timing.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>

namespace keyhole::bench {
namespace {

// The value below which a share of the sorted samples lies, between neighbours by straight line.
double quantile(const std::vector<double>& sorted, double share) {
  const double place = share * double(sorted.size() - 1);
  const size_t below = size_t(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - double(below)) * (sorted[above] - sorted[below]);
}

double host_ms(const std::function<void()>& call, int times, bool is_cpu_time) {
  const double begin = now_s(is_cpu_time);
  for (int i = 0; i < times; ++i) call();
  return 1e3 * (now_s(is_cpu_time) - begin);
}

// One call with how many times it is made per run.
struct Timed {
  const std::function<void()>& call;
  int calls_per_run = 1;
  double spent_ms = 0;
  std::vector<double> samples_ms;

  void run(const TimingEffort& effort) {
    const double elapsed_ms = effort.stopwatch ? effort.stopwatch(call, calls_per_run)
                                               : host_ms(call, calls_per_run, effort.is_cpu_time);
    spent_ms += elapsed_ms;
    samples_ms.push_back(elapsed_ms / calls_per_run);
  }

  bool is_done(const TimingEffort& effort) const {
    const int runs = int(samples_ms.size());
    return runs >= effort.max_runs || (runs >= effort.min_runs && spent_ms >= effort.budget_ms) ||
           (runs > 0 && spent_ms >= effort.most_ms);
  }
};

// The first call compiles what is compiled on first use and faults pages in; the second tells how
// many calls make a run.
void warm_up(Timed& subject, const TimingEffort& effort) {
  subject.run(effort);
  if (subject.is_done(effort)) return;  // so long that it needs no second look
  if (subject.samples_ms.back() < effort.budget_ms) subject.run(effort);
  const double call_ms = std::max(subject.samples_ms.back(), 1e-5);
  subject.calls_per_run =
      std::clamp(int(std::ceil(effort.min_run_ms / call_ms)), 1, effort.most_calls_per_run);
  subject.samples_ms.clear();
  subject.spent_ms = 0;
}

}  // namespace

double now_s(bool is_cpu_time) {
  if (is_cpu_time) {
    timespec spent{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
    return double(spent.tv_sec) + 1e-9 * double(spent.tv_nsec);
  }
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

Timing summarize(std::vector<double> samples_ms) {
  if (samples_ms.empty()) return {};
  std::sort(samples_ms.begin(), samples_ms.end());
  return {.median_ms = quantile(samples_ms, 0.5),
          .p10_ms = quantile(samples_ms, 0.1),
          .p90_ms = quantile(samples_ms, 0.9),
          .min_ms = samples_ms.front(),
          .runs = int(samples_ms.size())};
}

std::vector<Timing> time_in_turns(const std::vector<std::function<void()>>& calls,
                                  const TimingEffort& effort) {
  std::vector<Timed> subjects;
  for (const auto& call : calls) {
    subjects.push_back({.call = call, .samples_ms = {}});
    warm_up(subjects.back(), effort);
  }
  for (bool is_any_left = true; is_any_left;) {
    is_any_left = false;
    for (Timed& subject : subjects) {
      if (subject.is_done(effort)) continue;
      subject.run(effort);
      is_any_left = true;
    }
  }
  std::vector<Timing> timings;
  for (Timed& subject : subjects) timings.push_back(summarize(std::move(subject.samples_ms)));
  return timings;
}

Timing time_call(const std::function<void()>& call, const TimingEffort& effort) {
  return time_in_turns({call}, effort).front();
}

}  // namespace keyhole::bench
