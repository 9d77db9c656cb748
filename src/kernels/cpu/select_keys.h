// src/kernels/cpu/select_keys.h
#pragma once

#include "kernels/select_contract.h"

namespace keyhole::cpu {

// T: float, or double for f64.
template <class T>
void select_keys(const ScoreArgs& scores, const TopKArgs& choice);
// The products on AMX tiles (amx.h). Storage: of q and k.
template <class Storage>
void select_keys_on_amx(const ScoreArgs& scores, const TopKArgs& choice);

}  // namespace keyhole::cpu
