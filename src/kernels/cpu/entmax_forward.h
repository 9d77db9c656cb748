// src/kernels/cpu/entmax_forward.h
// Attention forward with entmax or top_k on the cpu: writes out, lambda (or lse) and the support.
#pragma once

#include "kernels/contract.h"

namespace keyhole::cpu {

template <class Storage>
void entmax_forward(const ForwardArgs& args);

}  // namespace keyhole::cpu
