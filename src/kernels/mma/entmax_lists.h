// src/kernels/mma/entmax_lists.h
// Entmax by lists of keys on tensor cores, on any GPU from sm_80 on.
#pragma once

#include "kernels/device/entmax_backward_call.h"

namespace keyhole::mma {

// The launches of the backward pass, for f16 and bf16, head_dim up to 128 and tensors in vectors.
const device::EntmaxListLaunches& entmax_list_launches();

}  // namespace keyhole::mma
