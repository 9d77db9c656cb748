// tests/support/gpu/compare.h
// Comparisons that run on a GPU and leave a few numbers behind. Each looks at every element; all
// are queued on the default stream.
#pragma once

#include <cstdint>

#include "keyhole/tensor.h"
#include "support/gpu/reference.h"

namespace keyhole::test {

// All zero at first: nothing wrong was found.
struct Verdict {
  unsigned long long wrong = 0;  // 2^64 - 1 - the smallest wrong index; 0: none
  unsigned long long worst = 0;  // largest share of a bound that was used: the bits of a double
  double error = 0, plain = 0, bound = 0;  // squares, added up

  bool found_something() const { return wrong != 0; }
  uint64_t first_wrong() const { return ~uint64_t{0} - wrong; }
};

// What a tensor must be, element by element.
struct ExpectedOnGpu {
  const double *want, *bound, *plain;
};
void compare_values(const TensorView& got, const ExpectedOnGpu& expected, Verdict* verdict);
// Which NaN is not part of the contract; that it is one is.
void compare_bits(const TensorView& a, const TensorView& b, Verdict* verdict);
// 16-bit words, indices count them.
void compare_words(const void* a, const void* b, int64_t bytes, Verdict* verdict);
void compare_with_pattern(const void* memory, int64_t bytes, uint16_t pattern, Verdict* verdict);

// q = 0: every allowed key has score 0, so that exp(lse) is their number. Indices are rows.
void compare_counts(const ReferenceInputs& in, const TensorView& lse, Verdict* verdict);
// Rows that see nothing: out exactly +0, lse exactly -inf (or the sink, rounded), dq exactly 0,
// where it is given. Indices are rows.
void check_empty_rows(const ReferenceInputs& in, const TensorView& out, const TensorView& lse,
                      const TensorView& dq, Verdict* verdict);

}  // namespace keyhole::test
