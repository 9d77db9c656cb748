// src/select/visible_keys.h
// How many keys the queries of a call see, and how many of them a selection keeps.
#pragma once

#include "keyhole/plan.h"

namespace keyhole {

struct KeyCounts {
  int64_t visible = 0;
  int64_t chosen = 0;  // at most k of each query
};

// One head with the causal pattern, the last query at the last key; lengths up to 2^31.
KeyCounts causal_keys(int64_t q_len, int64_t k_len, int64_t k);

// All heads and batch entries of a plan.
KeyCounts keys_of(const Plan& plan, int64_t k);

}  // namespace keyhole
