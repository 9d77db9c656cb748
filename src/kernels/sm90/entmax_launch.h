// src/kernels/sm90/entmax_launch.h
// The forward pass of entmax and top_k for one padded head_dim each: 64, 128; f32, f16 and bf16.
// Compiled as src/kernels/instantiations.cmake lists them.
#pragma once

#include "kernels/contract.h"

namespace keyhole::sm90 {

// Shared memory a CTA of the scan needs, whatever its configuration.
inline constexpr int64_t kEntmaxSharedBytes = 227 * 1024;

template <DType kType, int kHeadDim>
void run_entmax_forward(const ForwardArgs& args);

}  // namespace keyhole::sm90
