// src/kernels/sm90/backward.cuh
// The launch of the backward kernel. backward_d*.cu compile it for one padded head_dim each.
#pragma once

#include "base/check.h"
#include "kernels/device/backward_call.h"
#include "kernels/device/check_cuda.h"
#include "kernels/sm80/backward_launch.h"
#include "kernels/sm80/gather_launch.h"
#include "kernels/sm90/backward_keys.cuh"
#include "kernels/sm90/backward_launch.h"

namespace keyhole::sm90 {

// dk and dv, and dq by atomic addition.
template <class T, class C>
void launch_keys(const BackwardParams& params, cudaStream_t stream) {
  constexpr int kBytes = sizeof(KeysShared<C>);
  const int64_t ctas = int64_t{params.sizes.num_heads()} * params.view.t_work.items_per_group;
  KEYHOLE_CHECK(ctas <= INT32_MAX, "sm90.backward: the plan gives ", ctas, " work items; at most ",
                INT32_MAX, " fit one launch: split the batch");
  if (ctas == 0) return;
  check_cuda(cudaFuncSetAttribute(backward_keys<T, C>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  kBytes),
             "reserving shared memory for sm90.backward");
  backward_keys<T, C><<<unsigned(ctas), kThreads, kBytes, stream>>>(params);
  check_cuda(cudaGetLastError(), "launching sm90.backward");
}

// Whether the kernel takes the call: tiles of its shape, additions in any order, and the shared
// memory that there is, of which a caller may allow less.
template <class C>
bool takes(const BackwardArgs& args) {
  if (args.deterministic || args.launch.shared_bytes < int64_t(sizeof(KeysShared<C>))) return false;
  for (const TileView& part : args.plan.tiles) {
    if (part.tile.q != C::tile_q || part.tile.k != C::tile_k) return false;
  }
  return true;
}

// kHeadDim: what the gathered rows are padded to
template <class T, class C, int kHeadDim = C::head_dim>
void run(const BackwardArgs& args) {
  device::run_backward_parts(args, {.keys = launch_keys<T, C>,
                                    .queries = nullptr,
                                    .gather = sm80::launch_gather_backward<T, kHeadDim>,
                                    .needs = sm80::needs_of(args),
                                    .bitmaps = BitmapLayout::mma});
}

}  // namespace keyhole::sm90
