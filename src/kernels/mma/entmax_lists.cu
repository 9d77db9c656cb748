// src/kernels/mma/entmax_lists.cu
#include <algorithm>

#include "base/check.h"
#include "kernels/device/entmax_backward_keys.cuh"
#include "kernels/device/entmax_backward_lists.h"
#include "kernels/device/entmax_backward_rows.cuh"
#include "kernels/mma/entmax_lists.h"
#include "kernels/mma/tensor_gather.cuh"

namespace keyhole::mma {
namespace {

void check(const device::EntmaxBackwardParams& p, DType dtype, bool is_in_vectors) {
  const device::Sizes& sizes = p.sizes;
  KEYHOLE_ASSERT(is_in_vectors && (dtype == DType::f16 || dtype == DType::bf16) &&
                     std::max(sizes.head_dim, sizes.v_head_dim) <= 128,
                 "entmax by lists on tensor cores was given ", to_string(dtype), ", head_dim ",
                 sizes.head_dim, " and ", sizes.v_head_dim);
  // The rows that lists may name are those of a kv head, and those of all heads that share it.
  KEYHOLE_CHECK(
      spans_few_units(p.k, 1, sizes.k_len) && spans_few_units(p.v, 1, sizes.k_len) &&
          spans_few_units(p.q, p.group(), sizes.q_len) &&
          spans_few_units(p.dout, p.group(), sizes.q_len),
      "attention: the rows of the heads that share keys span more than 32 GiB of memory, which "
      "entmax does not take on this GPU; make q, k, v and dout contiguous");
}

void launch_rows(const device::EntmaxBackwardParams& params, DType dtype, bool is_in_vectors,
                 cudaStream_t stream) {
  check(params, dtype, is_in_vectors);
  with_narrow_gather<device::kSlotsOfRows>(
      dtype, std::max(params.sizes.head_dim, params.sizes.v_head_dim),
      [&](auto g) { device::launch_follow_rows<decltype(g)>(params, stream); });
}

void launch_keys(const device::EntmaxBackwardParams& params, DType dtype, bool is_in_vectors,
                 int32_t num_processors, cudaStream_t stream) {
  check(params, dtype, is_in_vectors);
  with_narrow_gather<device::kSlotsOfKeys>(
      dtype, std::max(params.sizes.head_dim, params.sizes.v_head_dim),
      [&](auto g) { device::launch_follow_keys<decltype(g)>(params, num_processors, stream); });
}

}  // namespace

const device::EntmaxListLaunches& entmax_list_launches() {
  static constexpr device::EntmaxListLaunches kLaunches = {launch_rows, launch_keys};
  return kLaunches;
}

}  // namespace keyhole::mma
