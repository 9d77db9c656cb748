// src/kernels/cpu/backward.h
// Attention backward on the cpu: dq, dk, dv (and dsink) from dout, with out and lse as given.
#pragma once

#include "kernels/contract.h"

namespace keyhole::cpu {

template <class Storage>
void backward(const BackwardArgs& args);
// The same with 16-bit products, for tiles of 32 keys or more, where amx::multiplies the dtype.
template <class Storage>
void backward_on_amx(const BackwardArgs& args);

}  // namespace keyhole::cpu
