// tests/support/laws.h
// Laws that need no oracle, only a second run. check_case holds one of them, drawn from the case's
// seed, against every case.
#pragma once

#include "support/check_case.h"
#include "support/tolerance.h"

namespace keyhole::test {

// `in` and `o` are contiguous: the inputs of the case and what the kernel made of them.
Failure check_law(const Case& c, const KernelChoice& kernel, const Pattern& pattern,
                  const Plan& plan, const Inputs& in, const Outputs& o,
                  const ExpectedForward& want);

// attention over A | B is the merge of attention over A and over B, for disjoint A and B.
Failure merge_law(const Case& c, const KernelChoice& kernel, const Pattern& pattern,
                  const Inputs& in, const ExpectedForward& want);
// A plan that was saved and loaded gives the same bits.
Failure reload_law(const Case& c, const KernelChoice& kernel, const Plan& plan, const Inputs& in,
                   const Outputs& o);
Plan reloaded(const Plan& plan, uint64_t name);  // saved to a file of that name, and loaded
// Grouped heads give the same bits as keys and values repeated for every head. (Forward: how the
// backward pass cuts its work, and so the order of its sums, may depend on the number of kv heads.)
Failure repeated_heads_law(const Case& c, const KernelChoice& kernel, const Plan& plan,
                           const Inputs& in, const Outputs& o);

}  // namespace keyhole::test
