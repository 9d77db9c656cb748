// src/kernels/sm90/wide_backward.cuh
// The backward kernel for wide heads, and its launch.
#pragma once

#include "base/check.h"
#include "kernels/device/backward_call.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/launch.h"
#include "kernels/device/once_per_gpu.h"
#include "kernels/device/storage.h"
#include "kernels/mma/gather_launch.h"
#include "kernels/sm90/backward_launch.h"
#include "kernels/sm90/wide_backward_dq.cuh"
#include "kernels/sm90/wide_backward_producer.cuh"
#include "kernels/sm90/wide_backward_sums.cuh"

namespace keyhole::sm90 {

// Persistent CTAs: each processes its share of the work items of all query heads. Query heads of
// one kv head add to the same sums.dk and sums.dv.
template <class T, class C, Bend kBend>
__global__ void __launch_bounds__(kWideThreads, 1)
    wide_backward(const __grid_constant__ BackwardParams p,
                  const __grid_constant__ BackwardMaps maps) {
  // setmaxnreg gives out what the CTA got at the start: else it waits forever.
  constexpr int kAtLaunch = 65536 / kWideThreads;
  static_assert(2 * C::sum_registers + C::dq_registers + C::producer_registers <= 4 * kAtLaunch);
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<WideShared<C>*>(memory);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();

  const int warp = warp_uniform(int(threadIdx.x / 32));  // the compiler must know that it is
  const int warpgroup = warp / 4;
  using Rule = SoftmaxKeys<kBend>;
  if (warpgroup == 3) {
    shrink_registers<C::producer_registers>();
    const int lane = int(threadIdx.x % 32);
    if (warp == 12 && lane == 0) plan(p, AllTiles{}, shared);
    if (warp == 13) WideProducer<C, Half::weights>(p, maps, shared).load(lane);
    if (warp == 14) WideProducer<C, Half::ds>(p, maps, shared).load(lane);
  } else if (warpgroup == 2) {
    if constexpr (C::dq_registers > kAtLaunch) {
      grow_registers<C::dq_registers>();
    } else {
      shrink_registers<C::dq_registers>();
    }
    WideDq<T, C>(p, shared).follow();
    shared.waits.end();
  } else if (warpgroup == 1) {
    grow_registers<C::sum_registers>();
    WideSum<T, C, Rule, Half::ds>(p, shared).follow();
    shared.waits.end();
  } else {
    grow_registers<C::sum_registers>();
    WideSum<T, C, Rule, Half::weights>(p, shared).follow();
    shared.waits.end();
  }
}

// dk, dv and dq.
template <class T, class C, Bend kBend>
void launch_wide(const BackwardParams& params, cudaStream_t stream) {
  constexpr int kBytes = sizeof(WideShared<C>);
  static_assert(kBytes <= kKeysSharedBytes, "does not fit");
  KEYHOLE_ASSERT(params.view.tile == (TileShape{C::tile_q, C::tile_k}),
                 "sm90.backward was given tiles of ", to_string(params.view.tile));
  const int ctas = params.view.t_work.shares.num_ctas;
  if (params.view.k_len == 0 || params.sizes.num_heads() == 0) return;
  KEYHOLE_ASSERT(ctas > 0, "sm90.backward was given lists without work items for CTAs");
  constexpr DType kType = std::is_same_v<T, __half> ? DType::f16 : DType::bf16;
  static device::OncePerGpu reserve;
  device::reserve_shared_memory(reserve, wide_backward<T, C, kBend>, kBytes, "sm90.backward");
  device::launch("sm90.backward", wide_backward<T, C, kBend>,
                 {unsigned(ctas), kWideThreads, size_t{kBytes}}, stream, params,
                 backward_maps(params, kType, C::tile_q, C::tile_k));
}

template <DType kType, int kHeadDim, Bend kBend>
void run_backward(const BackwardArgs& args) {
  using C = std::conditional_t<kHeadDim == 192, WideDim192, WideDim256>;
  static_assert(C::head_dim == kHeadDim);
  device::run_backward_parts(args, {.keys = launch_wide<device::Storage<kType>, C, kBend>,
                                    .queries = nullptr,
                                    .gather = mma::gather_backward_launch(args),
                                    .spans = mma::span_launches(args),
                                    .bitmaps = BitmapLayout::mma});
}

}  // namespace keyhole::sm90
