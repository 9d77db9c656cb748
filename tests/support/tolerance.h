// tests/support/tolerance.h
// How far a kernel may be from the fp64 reference: never a magic number. Two rules, both from the
// input at hand.
//   element  every element lies within what rounding can do to it, given the sizes of all that was
//            added up for it (an error analysis in absolute values, so cancellation neither fails a
//            good kernel nor excuses a bad one);
//   norm     the whole tensor is no further off than a few times what a plain loop in the same
//            precision is. This one sees small systematic errors that the element rule lets pass.
// Specials are exact: NaN and infinity stand where the reference has them, nowhere else.
#pragma once

#include <string>
#include <vector>

#include "reference/attention.h"
#include "support/inputs.h"
#include "support/rounding.h"

namespace keyhole::test {

// What a tensor must be, how far each element may be off, and what the plain loop made of it.
struct Expected {
  std::vector<double> want, bound, plain;
  std::vector<bool> is_open = {};  // any value is right, NaN too; empty: nowhere
};

struct ExpectedForward {
  Expected out, lse;
};
struct ExpectedGradients {
  Expected dq, dk, dv, dsink;
};

// Reference, bounds and a plain same-precision computation of a case. `rounds_weights`: the kernel
// rounds weights and score gradients to the dtype before it multiplies them (tensor cores do).
ExpectedForward expect_forward(const Case& c, const Pattern& pattern, const AllowedPairs& allowed,
                               const Inputs& in, bool rounds_weights = false);
// `forward` as expect_forward gave it: the backward pass starts from an output of that accuracy.
ExpectedGradients expect_gradients(const Case& c, const Pattern& pattern,
                                   const AllowedPairs& allowed, const Inputs& in,
                                   const ExpectedForward& forward, bool rounds_weights = false);

Rounding rounding_of(const Case& c, bool rounds_weights);

// In words, where `got` breaks a rule; empty when it keeps them all. `worst`, when given, takes the
// largest share of either bound that was used.
std::string disagreement(const std::string& name, DType dtype, const std::vector<double>& got,
                         const Expected& expected, double* worst = nullptr);
// Its words: for one element, and for the norms of the errors of a whole tensor (empty: allowed).
std::string wrong_element(const std::string& name, size_t index, double got, double want,
                          double bound, double plain);
std::string wrong_norm(const std::string& name, DType dtype, double got, double plain,
                       double bound);

}  // namespace keyhole::test
