// tests/support/check_plan.h
// Plans alone, many of them: a seed gives a pattern and a shape, the plan of each is compared with
// the pattern in every tile shape of a list, pair by pair.
#pragma once

#include <cstdint>
#include <span>

#include "support/check_case.h"

namespace keyhole::test {

// Odd ones, narrow ones, and those that kernels use.
std::span<const TileShape> plan_tiles();

Case draw_plan_case(uint64_t seed);
// Compares in every tile shape of plan_tiles(), or in the one that c.tile names when it is >= 0.
// `combinations` counts the (pattern, q_len, k_len, tile) that were compared.
Failure check_plan(const Case& c, int64_t* combinations = nullptr, int64_t* pairs = nullptr);

}  // namespace keyhole::test
