// src/kernels/cpu/entmax_forward.h
// Attention forward with entmax or top_k on the cpu: writes out, lambda (or lse) and the support.
#pragma once

#include "kernels/contract.h"

namespace keyhole::cpu {

template <class Storage>
void entmax_forward(const ForwardArgs& args);

// The scores by AMX tiles (amx.h), of which the processor must be capable: Half and BFloat16.
template <class Storage>
void entmax_forward_on_amx(const ForwardArgs& args);

}  // namespace keyhole::cpu
