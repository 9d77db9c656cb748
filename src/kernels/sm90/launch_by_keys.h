// src/kernels/sm90/launch_by_keys.h
// What the two backward kernels have in common on the host: CTAs that keep keys and follow
// transposed lists.
#pragma once

#include <cuda_runtime_api.h>

#include "base/check.h"
#include "kernels/device/backward_call.h"
#include "kernels/device/launch.h"
#include "kernels/device/once_per_gpu.h"
#include "kernels/mma/gather_launch.h"
#include "kernels/sm90/backward_config.h"
#include "kernels/sm90/tensor_maps.h"

namespace keyhole::sm90 {

using KernelByKeys = void (*)(device::BackwardParams, BackwardMaps);
using LaunchByKeys = void (*)(const device::BackwardParams& params, cudaStream_t stream);

inline constexpr bool kBeginsEarly = true;  // device/launch.h; the kernels wait where they must

// dk, dv and dq. reserve: of this kernel alone; kBytes: of shared memory.
template <DType kType, class C, int kThreads, int kBytes>
void launch_by_keys(device::OncePerGpu& reserve, KernelByKeys kernel,
                    const device::BackwardParams& params, cudaStream_t stream) {
  static_assert(kBytes <= kKeysSharedBytes, "does not fit: drop a stage");
  KEYHOLE_ASSERT(params.view.tile == (TileShape{C::tile_q, C::tile_k}),
                 "sm90.backward was given tiles of ", to_string(params.view.tile));
  const int ctas = params.view.t_work.shares.num_ctas;
  if (params.view.k_len == 0 || params.sizes.num_heads() == 0) return;
  KEYHOLE_ASSERT(ctas > 0, "sm90.backward was given lists without work items for CTAs");
  device::reserve_shared_memory(reserve, kernel, kBytes, "sm90.backward");
  device::launch("sm90.backward", kernel, {unsigned(ctas), kThreads, size_t{kBytes}, kBeginsEarly},
                 stream, params, backward_maps(params, kType, C::tile_q, C::tile_k));
}

// The whole pass around that launch.
inline void run_by_keys(const BackwardArgs& args, LaunchByKeys keys) {
  device::run_backward_parts(args, {.keys = keys,
                                    .queries = nullptr,
                                    .gather = mma::gather_backward_launch(args),
                                    .spans = mma::span_launches(args),
                                    .begin_early = kBeginsEarly,
                                    .bitmaps = BitmapLayout::mma});
}

}  // namespace keyhole::sm90
