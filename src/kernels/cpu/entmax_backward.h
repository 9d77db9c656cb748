// src/kernels/cpu/entmax_backward.h
// Attention backward with entmax or top_k on the cpu: dq, dk, dv (and dsink) from dout, with lambda
// (or lse) as given.
#pragma once

#include "kernels/contract.h"

namespace keyhole::cpu {

template <class Storage>
void entmax_backward(const BackwardArgs& args);

// The scores by AMX tiles (amx.h), of which the processor must be capable: Half and BFloat16.
template <class Storage>
void entmax_backward_on_amx(const BackwardArgs& args);

}  // namespace keyhole::cpu
