// src/kernels/mma/entmax_solve.h
// From candidates to results: lambda, support and output of each row whose list a scan has filled.
// Rows that it cannot finish (a product that is not finite) get the count kAlone.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/entmax_params.h"

namespace keyhole::mma {

// v and out: is_in_vectors, v_head_dim at most 128.
void launch_solve_candidates(const device::EntmaxParams& params, DType dtype, cudaStream_t stream);

}  // namespace keyhole::mma
