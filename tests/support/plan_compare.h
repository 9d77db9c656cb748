// tests/support/plan_compare.h
// A plan against the pattern it was made from, every pair of every head.
#pragma once

#include <string>

#include "keyhole/plan.h"
#include "support/inputs.h"

namespace keyhole::test {

// Rebuilds the boolean matrix of every head from what a kernel would see of the plan, and compares
// it with the pattern: each allowed pair is in exactly one tile or key list of one part, no other
// pair in any; full tiles hold only allowed pairs and hang over no end; bits beyond the ends are
// clear; the transposed lists are the transpose; the order of work is a permutation, longest lists
// first. In words, what does not hold; empty when all does.
std::string compare_plan_with_pattern(const Plan& plan, const Pattern& pattern, TileShape tile);
std::string compare_plan_with_pairs(const Plan& plan, const AllowedPairs& allowed, TileShape tile);

}  // namespace keyhole::test
