// src/kernels/device/entmax_rows.h
// Rows of entmax and top_k, a warp each: any plan, scale, softcap, sink and top_k, on any GPU.
#pragma once

#include <cuda_runtime_api.h>

#include "base/dtype.h"
#include "kernels/device/entmax_params.h"
#include "kernels/device/row_scratch.h"

namespace keyhole::device {

// How much is wanted, without the memory.
RowScratch row_scratch_for(const Sizes& sizes, int num_processors);

// Queues out, lambda and support of every row.
void launch_entmax_rows(const EntmaxParams& params, DType dtype, BitmapLayout bitmaps,
                        const RowScratch& scratch, cudaStream_t stream);

}  // namespace keyhole::device
