// cli/bench/timing.h
// Times calls: warm-up, repeats, and the median with its spread. Several calls are timed in turns,
// so that a disturbance of the machine meets all of them and their ratio survives it.
#pragma once

#include <functional>
#include <vector>

namespace keyhole::bench {

// Milliseconds of one call.
struct Timing {
  double median_ms = 0, p10_ms = 0, p90_ms = 0, min_ms = 0;
  int runs = 0;
};

// What `times` calls take together, in milliseconds.
using Stopwatch = std::function<double(const std::function<void()>& call, int times)>;

// How long to look. A run of a call shorter than min_run_ms is many calls, so that the clock's
// resolution does not show.
struct TimingEffort {
  Stopwatch stopwatch = {};  // of a GPU; not given: the host's clocks
  bool is_cpu_time = false;  // the processor's time instead of the clock on the wall
  int min_runs = 5, max_runs = 30;
  double budget_ms = 400;  // for each call; min_runs may exceed it ...
  double most_ms = 10000;  // ... up to here; a call as long as this is run once
  double min_run_ms = 0.25;
  int most_calls_per_run = 1 << 20;  // 1: what happens between two runs (--cold) meets every call
};

Timing summarize(std::vector<double> samples_ms);

Timing time_call(const std::function<void()>& call, const TimingEffort& effort);
std::vector<Timing> time_in_turns(const std::vector<std::function<void()>>& calls,
                                  const TimingEffort& effort);

// Seconds since an arbitrary moment; of the clock on the wall, or spent by this process on all its
// threads together. The latter, with one thread, is what a machine shared with others can tell.
double now_s(bool is_cpu_time = false);

}  // namespace keyhole::bench
