// src/kernels/sm80/backward_launch.h
// The backward pass for one padded head_dim each; T is __half or __nv_bfloat16. Each is compiled in
// a file of its own (backward_d*.cu). The shape of the plan's tiles and args.launch.shared_bytes
// decide between the configurations of backward_config.h.
#pragma once

#include "kernels/contract.h"

namespace keyhole::sm80 {

template <class T>
void backward_d64(const BackwardArgs& args);
template <class T>
void backward_d96(const BackwardArgs& args);
template <class T>
void backward_d128(const BackwardArgs& args);
template <class T>
void backward_d192(const BackwardArgs& args);
template <class T>
void backward_d256(const BackwardArgs& args);

}  // namespace keyhole::sm80
