// src/kernels/mma/entmax_lists.h
// Entmax by lists of keys on tensor cores, on any GPU from sm_80 on.
#pragma once

#include "kernels/device/entmax_backward_call.h"

namespace keyhole::mma {

// The launches of the backward pass. Calls that tensor cores do not take (other dtypes, wider rows,
// rows that are not in vectors) go to those of every GPU.
const device::EntmaxListLaunches& entmax_list_launches();

}  // namespace keyhole::mma
