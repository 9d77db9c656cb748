// src/kernels/sm90/backward.cuh
// The launch of the backward kernel.
#pragma once

#include "base/check.h"
#include "kernels/device/backward_call.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/launch.h"
#include "kernels/device/once_per_gpu.h"
#include "kernels/device/storage.h"
#include "kernels/mma/gather_launch.h"
#include "kernels/sm90/backward_keys.cuh"
#include "kernels/sm90/backward_launch.h"

namespace keyhole::sm90 {

// dk, dv and dq.
template <class T, class C, Bend kBend>
void launch_keys(const BackwardParams& params, cudaStream_t stream) {
  constexpr int kBytes = sizeof(KeysShared<C>);
  static_assert(kBytes <= kKeysSharedBytes, "does not fit: drop a stage");
  KEYHOLE_ASSERT(params.view.tile == (TileShape{C::tile_q, C::tile_k}),
                 "sm90.backward was given tiles of ", to_string(params.view.tile));
  const int ctas = params.view.t_work.shares.num_ctas;
  if (params.view.k_len == 0 || params.sizes.num_heads() == 0) return;
  KEYHOLE_ASSERT(ctas > 0, "sm90.backward was given lists without work items for CTAs");
  constexpr DType kType = std::is_same_v<T, __half> ? DType::f16 : DType::bf16;
  static device::OncePerGpu reserve;
  device::reserve_shared_memory(reserve, backward_keys<T, C, kBend>, kBytes, "sm90.backward");
  device::launch("sm90.backward", backward_keys<T, C, kBend>,
                 {unsigned(ctas), kThreads, size_t{kBytes}}, stream, params,
                 backward_maps(params, kType, C::tile_q, C::tile_k));
}

template <DType kType, int kHeadDim, Bend kBend>
void run_backward(const BackwardArgs& args) {
  using C = std::conditional_t<kHeadDim == 64, KeysDim64, KeysDim128>;
  static_assert(C::head_dim == kHeadDim);
  device::run_backward_parts(args, {.keys = launch_keys<device::Storage<kType>, C, kBend>,
                                    .queries = nullptr,
                                    .gather = mma::gather_backward_launch(args),
                                    .spans = mma::span_launches(args),
                                    .bitmaps = BitmapLayout::mma});
}

}  // namespace keyhole::sm90
