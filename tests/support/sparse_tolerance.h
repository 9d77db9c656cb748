// tests/support/sparse_tolerance.h
// tolerance.h for entmax and top_k: what rounding can do to a row whose keys may gain or lose their
// weight by it. A score that is off by e moves lambda by at most e, and a weight by the slope times
// both; at a threshold, bounds come from the weights on either side.
#pragma once

#include "support/tolerance.h"

namespace keyhole::test {

// Fill bound and plain; `want` is there.
void bound_sparse_forward(const Case& c, const AllowedPairs& allowed, const Inputs& in,
                          ExpectedForward& expected);
void bound_sparse_gradients(const Case& c, const AllowedPairs& allowed, const Inputs& in,
                            bool rounds_weights, ExpectedGradients& expected);

}  // namespace keyhole::test
