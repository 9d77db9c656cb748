// src/kernels/cpu/index_scores.h
#pragma once

#include "kernels/select_contract.h"

namespace keyhole::cpu {

// T: float, or double for f64.
template <class T>
void index_scores(const ScoreArgs& args);
// The products on AMX tiles (amx.h). Storage: of q and k.
template <class Storage>
void index_scores_on_amx(const ScoreArgs& args);

}  // namespace keyhole::cpu
