// src/kernels/device/entmax_backward_rows.cu
#include <algorithm>

#include "kernels/device/entmax_backward_lists.h"
#include "kernels/device/entmax_backward_rows.cuh"

namespace keyhole::device {

void launch_entmax_backward_rows(const EntmaxBackwardParams& params, DType dtype,
                                 bool is_in_vectors, cudaStream_t stream) {
  const int32_t widest = std::max(params.sizes.head_dim, params.sizes.v_head_dim);
  with_row_gather(dtype, widest, is_in_vectors,
                  [&](auto g) { launch_follow_rows<decltype(g)>(params, stream); });
}

}  // namespace keyhole::device
