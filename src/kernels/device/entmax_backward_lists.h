// src/kernels/device/entmax_backward_lists.h
// The launches of the backward pass of entmax that a backend may have a faster form of.
// is_in_vectors: all tensors of the call are.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/entmax_backward_params.h"

namespace keyhole::device {

struct EntmaxListLaunches {
  // By the support of a row: delta, dq, and what the row gives to each of its keys. Rows whose
  // support is usable, and rows without weights, whose dq is 0.
  void (*rows)(const EntmaxBackwardParams& params, DType dtype, bool is_in_vectors,
               cudaStream_t stream);
  // dk and dv from the entries that the rows have left for each key, and from the sums over rows
  // that left none.
  void (*keys)(const EntmaxBackwardParams& params, DType dtype, bool is_in_vectors,
               int32_t num_processors, cudaStream_t stream);
};

// Those of every GPU.
void launch_entmax_backward_rows(const EntmaxBackwardParams& params, DType dtype,
                                 bool is_in_vectors, cudaStream_t stream);
void launch_entmax_backward_keys(const EntmaxBackwardParams& params, DType dtype,
                                 bool is_in_vectors, int32_t num_processors, cudaStream_t stream);

}  // namespace keyhole::device
