// src/kernels/sm90/backward_launch.h
// The backward pass for one padded head_dim each; T is __half or __nv_bfloat16. What the kernel of
// sm_90 does not do (additions in a fixed order, small tiles, little shared memory) those of sm80
// do; the workspace is that of the one that will run.
#pragma once

#include "kernels/contract.h"

namespace keyhole::sm90 {

template <class T>
void backward_d64(const BackwardArgs& args);
template <class T>
void backward_d96(const BackwardArgs& args);
template <class T>
void backward_d128(const BackwardArgs& args);

int64_t backward_d64_workspace(const BackwardArgs& args);
int64_t backward_d128_workspace(const BackwardArgs& args);  // of head_dim 96, too

}  // namespace keyhole::sm90
