// src/kernels/sm80/forward_launch.h
// The forward pass for one padded head_dim each: 64, 96, 128, 192, 256; f16 and bf16. Compiled as
// src/kernels/instantiations.cmake lists them. The shape of the lists' tiles and
// args.launch.shared_bytes decide between the configurations of config.h.
#pragma once

#include "kernels/contract.h"

namespace keyhole::sm80 {

template <DType kType, int kHeadDim>
void run_forward(const ForwardArgs& args);

}  // namespace keyhole::sm80
