// src/kernels/sm90/forward_launch.h
// The forward pass for one padded head_dim each: 64, 96, 128, 192, 256; f16 and bf16; with a
// softcap or without. Compiled as src/kernels/instantiations.cmake lists them. The shape of the
// lists' tiles decides between the configurations of forward_config.h.
#pragma once

#include "kernels/contract.h"

namespace keyhole::sm90 {

template <DType kType, int kHeadDim, Bend kBend>
void run_forward(const ForwardArgs& args);

}  // namespace keyhole::sm90
