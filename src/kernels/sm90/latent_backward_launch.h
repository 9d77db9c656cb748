// src/kernels/sm90/latent_backward_launch.h
#pragma once

#include "kernels/contract.h"

namespace keyhole::sm90 {

// Key lists whose v is the first columns of k; dk and dv are added up in no fixed order. kType: f16
// or bf16. kLatentHeadDim and kLatentValueDim (latent_forward_launch.h) are the most columns.
template <DType kType>
void run_latent_backward(const BackwardArgs& args);

}  // namespace keyhole::sm90
