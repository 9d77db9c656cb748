// tests/fuzz/workers.h
// Runs numbered jobs in several processes. A process per core, not a thread: a kernel that crashes
// or hangs takes down its worker, and the job it was at is still known.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "support/check_case.h"

namespace keyhole::fuzz {

struct Totals {
  int64_t done = 0, failed = 0, combinations = 0, kernel_runs = 0, pairs = 0;
  test::Skips skipped;  // cases that no kernel took
  test::Skips refused;  // kernels that did not take a case
  double worst = 0;
  int64_t passed() const { return done - failed - skipped.total(); }
};

// What a job adds to the totals; a failure stops everything.
using Job = std::function<test::Failure(uint64_t seed, Totals& totals)>;

struct Outcome {
  Totals totals;
  std::optional<uint64_t> failed_seed;
  test::Failure failure;  // of that seed; kind "crash" or "hang" when the worker did not return
};

// Jobs first_seed, first_seed + 1, ... `count` of them, or as many as fit into `seconds` (0: no
// limit).
Outcome run_jobs(uint64_t first_seed, int64_t count, double seconds, int workers, const Job& job);

// One job in a process of its own, so that a crash is a result like any other.
test::Failure run_isolated(const std::function<test::Failure()>& job);

}  // namespace keyhole::fuzz
