// src/kernels/simple/index_scores.h
#pragma once

#include "kernels/select_contract.h"

namespace keyhole::simple {

// Any index heads and head_dim, tensors of any strides. kType: of q and k.
template <DType kType>
void run_index_scores(const ScoreArgs& args);

}  // namespace keyhole::simple
