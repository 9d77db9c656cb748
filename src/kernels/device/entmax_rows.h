// src/kernels/device/entmax_rows.h
// Rows of entmax and top_k one at a time: any plan, scale, softcap, sink and top_k, on any GPU.
#pragma once

#include <cuda_runtime_api.h>

#include "base/dtype.h"
#include "kernels/device/entmax_params.h"

namespace keyhole::device {

// Memory in which each warp of the launch keeps the list of the row it works on.
struct RowScratch {
  void* lists = nullptr;       // 256-byte aligned
  int32_t bytes_per_list = 0;  // of a warp
  int32_t num_ctas = 0;

  int64_t bytes() const;
};
// How much is wanted, without the memory.
RowScratch row_scratch_for(const Sizes& sizes, int num_processors);

// Queues out, lambda and support of every row; of those that the scan left alone, where one was
// made (params.candidates.count).
void launch_entmax_rows(const EntmaxParams& params, DType dtype, BitmapLayout bitmaps,
                        const RowScratch& scratch, cudaStream_t stream);

}  // namespace keyhole::device
