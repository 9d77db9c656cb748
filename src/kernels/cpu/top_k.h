// src/kernels/cpu/top_k.h
#pragma once

#include "kernels/select_contract.h"

namespace keyhole::cpu {

// Storage: of the scores.
template <class Storage>
void top_k(const TopKArgs& args);

}  // namespace keyhole::cpu
