// src/kernels/device/entmax_left_rows.h
// The rows of entmax and top_k that a scan or its solution left alone: few, and long. A CTA
// computes each of them, so that the last one is not waited for.
#pragma once

#include <cuda_runtime_api.h>

#include "base/dtype.h"
#include "kernels/device/entmax_params.h"
#include "kernels/device/row_scratch.h"

namespace keyhole::device {

// How much is wanted, without the memory.
RowScratch left_row_scratch_for(const Sizes& sizes, int num_processors);

// Queues out, lambda and support of every row whose count of candidates is kAlone. Rows of v begin
// at multiples of 16 bytes; the plan is one part of tiles. Overwrites the counts.
void launch_entmax_left_rows(const EntmaxParams& params, DType dtype, BitmapLayout bitmaps,
                             const RowScratch& scratch, cudaStream_t stream);

}  // namespace keyhole::device
