// src/kernels/device/entmax_backward_keys.cu
#include "kernels/device/entmax_backward_keys.cuh"
#include "kernels/device/entmax_backward_lists.h"

namespace keyhole::device {

void launch_entmax_backward_keys(const EntmaxBackwardParams& params, DType dtype,
                                 bool is_in_vectors, int32_t num_processors, cudaStream_t stream) {
  const int32_t widest = std::max(params.sizes.head_dim, params.sizes.v_head_dim);
  KEYHOLE_ASSERT(widest <= kWidest, "entmax with head_dim ", widest);
  with_row_gather(dtype, widest, is_in_vectors,
                  [&](auto g) { launch_follow_keys<decltype(g)>(params, num_processors, stream); });
}

}  // namespace keyhole::device
