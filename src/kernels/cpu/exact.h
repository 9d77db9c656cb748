// src/kernels/cpu/exact.h
// The cold path: one row at a time, in fp64, visiting only the pairs that attend. The kernels
// multiply the probabilities of whole tiles, and 0 x NaN is NaN, so a row that is not finite is
// recomputed here. A NaN that is not attended then has no effect, and an attended one reaches every
// result it should.
#pragma once

#include "kernels/contract.h"

namespace keyhole::cpu {

// out and lse of one query of one head.
template <class Storage>
void exact_forward_row(const ForwardArgs& args, int64_t batch, int64_t head, int64_t query);

// Whether the query has no key in any part of the plan.
bool attends_to_nothing(const PlanView& plan, int64_t head_index, int64_t query);

// dq of one query; dk and dv of one key of one kv head.
template <class Storage>
void exact_query_gradient(const BackwardArgs& args, int64_t batch, int64_t head, int64_t query);
template <class Storage>
void exact_key_gradient(const BackwardArgs& args, int64_t batch, int64_t kv_head, int64_t key);

}  // namespace keyhole::cpu
