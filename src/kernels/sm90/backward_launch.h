// src/kernels/sm90/backward_launch.h
// The backward pass for one padded head_dim each; f16 and bf16; with a softcap or without. Compiled
// as src/kernels/instantiations.cmake lists them.
#pragma once

#include "kernels/contract.h"

namespace keyhole::sm90 {

// 64, 96 and 128 (backward.cuh).
template <DType kType, int kHeadDim, Bend kBend>
void run_backward(const BackwardArgs& args);

// 192 and 256 (wide_backward.cuh).
template <DType kType, int kHeadDim, Bend kBend>
void run_wide_backward(const BackwardArgs& args);

}  // namespace keyhole::sm90
