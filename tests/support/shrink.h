// tests/support/shrink.h
// From a failing case to a smaller one that fails in the same way.
#pragma once

#include <functional>
#include <string>

#include "support/case.h"

namespace keyhole::test {

// What kind of failure a case shows; empty: none.
using FailureKind = std::function<std::string(const Case&)>;

struct ShrinkBudget {
  int attempts = 2000;
  double seconds = 60;
};
struct Shrunk {
  Case smallest;
  int attempts = 0;
  int steps = 0;  // how many of them made the case smaller
};

// Tries, again and again, in this order: a simpler pattern (a child for its parent, a leaf for a
// branch), smaller numbers in it, shorter lengths, fewer heads and batch entries, narrower heads,
// contiguous tensors, plain numbers and options. Keeps what still fails as kind_of(failing) does.
Shrunk shrink(const Case& failing, const FailureKind& kind_of, ShrinkBudget budget = {});

}  // namespace keyhole::test
