// src/kernels/mma/entmax_lists.cu
#include <algorithm>

#include "kernels/device/entmax_backward_keys.cuh"
#include "kernels/device/entmax_backward_lists.h"
#include "kernels/device/entmax_backward_rows.cuh"
#include "kernels/mma/entmax_lists.h"
#include "kernels/mma/tensor_gather.cuh"

namespace keyhole::mma {
namespace {

// The rows that lists may name are those of a kv head, and those of all heads that share it.
bool can_take(const device::EntmaxBackwardParams& p, DType dtype, bool is_in_vectors) {
  constexpr int32_t kWidestRow = 128;
  const device::Sizes& sizes = p.sizes;
  return is_in_vectors && (dtype == DType::f16 || dtype == DType::bf16) &&
         std::max(sizes.head_dim, sizes.v_head_dim) <= kWidestRow &&
         spans_few_units(p.k, 1, sizes.k_len) && spans_few_units(p.v, 1, sizes.k_len) &&
         spans_few_units(p.q, p.group(), sizes.q_len) &&
         spans_few_units(p.dout, p.group(), sizes.q_len);
}

void launch_rows(const device::EntmaxBackwardParams& params, DType dtype, bool is_in_vectors,
                 cudaStream_t stream) {
  const device::Sizes& sizes = params.sizes;
  if (!can_take(params, dtype, is_in_vectors)) {
    return device::launch_entmax_backward_rows(params, dtype, is_in_vectors, stream);
  }
  with_narrow_gather<device::kSlotsOfRows>(
      dtype, std::max(sizes.head_dim, sizes.v_head_dim),
      [&](auto g) { device::launch_follow_rows<decltype(g)>(params, stream); });
}

void launch_keys(const device::EntmaxBackwardParams& params, DType dtype, bool is_in_vectors,
                 int32_t num_processors, cudaStream_t stream) {
  const device::Sizes& sizes = params.sizes;
  if (!can_take(params, dtype, is_in_vectors)) {
    return device::launch_entmax_backward_keys(params, dtype, is_in_vectors, num_processors,
                                               stream);
  }
  with_narrow_gather<device::kSlotsOfKeys>(
      dtype, std::max(sizes.head_dim, sizes.v_head_dim),
      [&](auto g) { device::launch_follow_keys<decltype(g)>(params, num_processors, stream); });
}

}  // namespace

const device::EntmaxListLaunches& entmax_list_launches() {
  static constexpr device::EntmaxListLaunches kLaunches = {launch_rows, launch_keys};
  return kLaunches;
}

}  // namespace keyhole::mma
