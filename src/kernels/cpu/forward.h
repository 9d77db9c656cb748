// src/kernels/cpu/forward.h
// Attention forward on the cpu: processes the tile and gather parts of a plan, writes out and lse.
#pragma once

#include "kernels/contract.h"

namespace keyhole::cpu {

template <class Storage>
void forward(const ForwardArgs& args);
// The same with 16-bit products, for tiles of 32 keys or more, where amx::multiplies the dtype.
template <class Storage>
void forward_on_amx(const ForwardArgs& args);

}  // namespace keyhole::cpu
