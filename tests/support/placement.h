// tests/support/placement.h
// Where the elements of a tensor of a case lie.
#pragma once

#include "judge/placement.h"
#include "support/case.h"

namespace keyhole::test {

using judge::Placement;

// `shape` has 4 dimensions, or 3 (lse), or 1 (sink).
Placement place(DType dtype, const std::vector<int64_t>& shape, Layout layout);

}  // namespace keyhole::test
