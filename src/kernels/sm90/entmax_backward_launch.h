// src/kernels/sm90/entmax_backward_launch.h
// The backward pass of entmax for one padded head_dim each: 64, 128; f16 and bf16. Compiled as
// src/kernels/instantiations.cmake lists them.
#pragma once

#include "kernels/contract.h"

namespace keyhole::sm90 {

template <DType kType, int kHeadDim>
void run_entmax_backward(const BackwardArgs& args);

}  // namespace keyhole::sm90
