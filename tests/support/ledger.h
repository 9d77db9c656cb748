// tests/support/ledger.h
// What was run, one line a run, appended to a text file: the proof counts executed cases only.
#pragma once

#include <cstdint>
#include <string>

namespace keyhole::test {

struct LedgerLine {
  uint64_t first_seed = 0;
  int64_t cases = 0, plans = 0, kernel_runs = 0, pairs = 0, failures = 0;
  int64_t skipped = 0, refused = 0;  // of the cases, and of their kernels; told where there are any
  double worst = 0;                  // largest share of a rounding bound used
  double seconds = 0;
};

std::string to_text(const LedgerLine& line);  // with date (UTC) and commit
void append_to_ledger(const std::string& path, const LedgerLine& line);  // throws Error(usage)

// The commit of the source tree these tests were built from, or "unknown".
std::string source_commit();

}  // namespace keyhole::test
