// cli/bench/check.h
// Before a case is timed: is its answer right? Compared with the fp64 reference, all rows of short
// sequences, a sample of long ones.
#pragma once

#include "cli/bench/inputs.h"
#include "keyhole/attention.h"
#include "runtime/dispatch.h"

namespace keyhole::bench {

struct CheckEffort {
  int64_t all_rows_up_to = 1024;            // longer sequences are sampled
  int64_t sampled_keys = int64_t{1} << 22;  // rows are drawn until they have met this many keys ...
  int64_t min_rows = 16, max_rows = 256;    // ... over all heads, within these bounds per head
};

// What a pass of a case runs.
Choice choice_for(const Case& c, Operation operation, const Lists& lists,
                  const AttentionOptions& options);

struct CheckResult {
  bool is_passed = false;
  int64_t rows = 0;  // checked, of each head
  bool is_sampled = false;
  double worst = 0;       // the largest difference, as a share of what is allowed
  std::string complaint;  // where it failed, with both numbers
};

// Runs the case once and compares. A backward case is checked with gradients that come in at the
// sampled rows only: those reach every key the rows attend to.
CheckResult check(const Case& c, const Lists& lists, Inputs& inputs, const CheckEffort& effort,
                  const AttentionOptions& options = {});

}  // namespace keyhole::bench
