// src/kernels/sm90/wide_backward.cuh
// The backward kernel for wide heads, and its launch.
#pragma once

#include "kernels/device/storage.h"
#include "kernels/sm90/backward_launch.h"
#include "kernels/sm90/launch_by_keys.h"
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
    if (warp == 12 && lane == 0) {
      plan<DqOrder::atomic>(device::ShareCursor(p.view.t_work.shares), p, AllTiles{}, shared,
                            [](const PlannedKeys&) {});
    }
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

template <DType kType, class C, Bend kBend>
void launch_wide(const BackwardParams& params, cudaStream_t stream) {
  static device::OncePerGpu reserve;
  launch_by_keys<kType, C, kWideThreads, sizeof(WideShared<C>)>(
      reserve, wide_backward<device::Storage<kType>, C, kBend>, params, stream);
}

template <DType kType, int kHeadDim, Bend kBend>
void run_wide_backward(const BackwardArgs& args) {
  using C = std::conditional_t<kHeadDim == 192, WideDim192, WideDim256>;
  static_assert(C::head_dim == kHeadDim);
  run_by_keys(args, launch_wide<kType, C, kBend>);
}

}  // namespace keyhole::sm90
