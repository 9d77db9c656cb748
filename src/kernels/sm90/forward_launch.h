// src/kernels/sm90/forward_launch.h
// The forward pass for one padded head_dim each; T is __half or __nv_bfloat16. Each is compiled in
// a file of its own (forward_d*.cu). The shape of the plan's tiles decides between the
// configurations of forward_config.h.
#pragma once

#include "kernels/contract.h"

namespace keyhole::sm90 {

template <class T>
void forward_d64(const ForwardArgs& args);
template <class T>
void forward_d96(const ForwardArgs& args);
template <class T>
void forward_d128(const ForwardArgs& args);
template <class T>
void forward_d192(const ForwardArgs& args);
template <class T>
void forward_d256(const ForwardArgs& args);

}  // namespace keyhole::sm90
