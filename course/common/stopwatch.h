// course/common/stopwatch.h
// How long a function takes on the CPU: the shortest of several runs, because whatever disturbs a
// run makes it longer.
#pragma once

#include <algorithm>
#include <chrono>

namespace course {

// Milliseconds. Runs at least `least_runs` times, and on until `seconds` have gone by.
template <class Function>
double best_milliseconds(Function&& run, double seconds = 0.1, int least_runs = 3) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  double best = 1e300;
  for (int runs = 0;
       runs < least_runs || std::chrono::duration<double>(Clock::now() - begin).count() < seconds;
       ++runs) {
    const Clock::time_point start = Clock::now();
    run();
    best = std::min(best, std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  return best;
}

}  // namespace course
