// src/kernels/device/top_k_by_digits.h
// top_k of any rows: a CTA finds the k-th score of its row by digits, and reads the row once more
// to write what is above it. Five passes over a row, whatever its scores are.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/top_k_rows.h"

namespace keyhole::device {

// only: rows that are not 0 there; null: all.
void launch_top_k_by_digits(DType dtype, const TopKRows& rows, const int32_t* only,
                            cudaStream_t stream);

}  // namespace keyhole::device
