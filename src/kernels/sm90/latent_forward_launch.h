// src/kernels/sm90/latent_forward_launch.h
#pragma once

#include "kernels/contract.h"

namespace keyhole::sm90 {

inline constexpr int64_t kLatentHeadDim = 576, kLatentValueDim = 512;

// One part of key lists; v is the first columns of k. kType: f16 or bf16.
template <DType kType>
void run_latent_forward(const ForwardArgs& args);

}  // namespace keyhole::sm90
