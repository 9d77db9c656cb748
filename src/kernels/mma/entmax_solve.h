// src/kernels/mma/entmax_solve.h
// From candidates to results: lambda, support and output of each row whose list a scan has filled.
// Rows that it cannot finish (a product that is not finite) get the count kAlone. The products of
// fp32 rows that were rounded for the scan are computed again, from the rows themselves.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/entmax_params.h"

namespace keyhole::mma {

// v and out, and for fp32 q and k: is_in_vectors, head_dim and v_head_dim at most 128.
void launch_solve_candidates(const device::EntmaxParams& params, const device::RoundedRows& rounded,
                             DType dtype, cudaStream_t stream);

}  // namespace keyhole::mma
