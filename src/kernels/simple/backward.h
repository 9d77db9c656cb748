// src/kernels/simple/backward.h
// The backward pass on any GPU from sm_75 on, in fp32 arithmetic: the one to read first.
// Deterministic: the same bits every time.
#pragma once

#include "kernels/contract.h"

namespace keyhole::simple {

void backward(const BackwardArgs& args);

}  // namespace keyhole::simple
