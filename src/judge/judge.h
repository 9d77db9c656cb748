// src/judge/judge.h
// What a kernel made of its inputs, held against the fp64 reference. No tolerance is a magic
// number: the reference is asked again with inputs that are off as rounding may have them, and what
// its results move by is what rounding may cost on this very input.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "judge/call_tensors.h"
#include "keyhole/attention.h"
#include "keyhole/pattern.h"

namespace keyhole::judge {

struct Finding {
  double error = 0, allowed = 0;  // at the place where error / allowed is worst
  std::string complaint;          // empty: passed
  double ratio() const { return allowed > 0 ? error / allowed : error > 0 ? 1e300 : 0; }
  void take(const Finding& other);  // where it is the worse one
};

// One call, on the host: what a kernel was given and what it gave.
struct Answer : CallTensors {
  Pattern pattern;
  AttentionOptions options = {};
  std::optional<int64_t> offset = {};
  uint64_t seed = 1;             // of the disturbance
  bool has_equal_terms = false;  // in the sums of out and dv
};

// All rows of a short sequence; so many of a long one, both ends among them.
std::vector<int64_t> rows_to_check(int64_t length, int64_t all_up_to, int64_t count, uint64_t seed);

// out and lse of these queries; dq of these, and what they alone add to dk and dv.
Finding judge_forward(const KernelEntry& kernel, const Answer& answer,
                      const std::vector<int64_t>& queries);
Finding judge_backward(const KernelEntry& kernel, const Answer& answer,
                       const std::vector<int64_t>& queries);
// Whether every element is a number. Elements that a kernel has not written are NaN.
Finding judge_written(const char* name, const TensorView& tensor, int threads);

// One number beside what it should be. `where` is called only to complain: texts cost more than the
// comparison.
bool is_worse(Finding& finding, double got, double want, double allowed);  // then finding holds it
void complain(Finding& finding, double got, double want, const std::string& where);
template <class Where>
void expect(Finding& finding, double got, double want, double allowed, Where&& where) {
  if (is_worse(finding, got, want, allowed)) complain(finding, got, want, where());
}

}  // namespace keyhole::judge
