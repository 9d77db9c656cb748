// src/kernels/sm90/wide_backward.cuh
// The backward kernel for wide heads, and its launch.
#pragma once

#include "kernels/device/storage.h"
#include "kernels/sm90/backward_launch.h"
#include "kernels/sm90/launch_by_keys.h"
#include "kernels/sm90/wide_backward_dq.cuh"
#include "kernels/sm90/wide_backward_producer.cuh"
#include "kernels/sm90/wide_backward_sums.cuh"
#include "kernels/sm90/wide_backward_turns.cuh"

namespace keyhole::sm90 {

// Persistent CTAs: each processes its share of the work items of all query heads. Query heads of
// one kv head add to the same sums.dk and sums.dv. kTurns: gradients are added up in a fixed order
// (backward_turns.cuh), otherwise in any, or dq is written.
template <class T, class C, Bend kBend, bool kTurns>
__global__ void __launch_bounds__(kWideThreads, 1)
    wide_backward(const __grid_constant__ BackwardParams p,
                  const __grid_constant__ BackwardMaps maps) {
  // setmaxnreg gives out what the CTA got at the start: else it waits forever.
  constexpr int kAtLaunch = 65536 / kWideThreads;
  static_assert(2 * C::sum_registers + C::dq_registers + C::producer_registers <= 4 * kAtLaunch);
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<WideShared<C>*>(memory);
  if (threadIdx.x == 0) shared.template init<kTurns>();
  __syncthreads();
  device::await_launch_before();

  const int warp = warp_uniform(int(threadIdx.x / 32));  // the compiler must know that it is
  const int warpgroup = warp / 4;
  using Rule = SoftmaxKeys<kBend>;
  using Walk = std::conditional_t<kTurns, device::ReverseTileWalk, device::TileWalk>;
  if (warpgroup == 3) {
    shrink_registers<C::producer_registers>();
    const int lane = int(threadIdx.x % 32);
    if (warp == 12 && lane == 0) {
      const Shares& shares = p.view.t_work.shares;
      const auto follow = [](const PlannedKeys&) {};
      if constexpr (kTurns) {
        plan<DqOrder::by_turns>(device::DrawnCursor(shares, p.turns), p, AllTiles{}, shared,
                                follow);
      } else {
        plan<DqOrder::atomic>(device::ShareCursor(shares), p, AllTiles{}, shared, follow);
      }
    }
    if (warp == 13) WideProducer<C, Half::weights, Walk>(p, maps, shared).load(lane);
    if (warp == 14) WideProducer<C, Half::ds, Walk>(p, maps, shared).load(lane);
    if (kTurns && warp == 15) WideTurns<C>(p, shared).follow();
  } else if (warpgroup == 2) {
    if constexpr (C::dq_registers > kAtLaunch) {
      grow_registers<C::dq_registers>();
    } else {
      shrink_registers<C::dq_registers>();
    }
    WideDq<T, C, kTurns>(p, shared).follow();
    shared.waits.end();
  } else if (warpgroup == 1) {
    grow_registers<C::sum_registers>();
    WideSum<T, C, Rule, Half::ds, kTurns>(p, shared).follow();
    shared.waits.end();
  } else {
    grow_registers<C::sum_registers>();
    WideSum<T, C, Rule, Half::weights, kTurns>(p, shared).follow();
    shared.waits.end();
  }
}

template <DType kType, class C, Bend kBend, bool kTurns>
void launch_with_turns(const BackwardParams& params, cudaStream_t stream) {
  static device::OncePerGpu reserve;
  launch_by_keys<kType, C, kWideThreads, sizeof(WideShared<C>)>(
      reserve, wide_backward<device::Storage<kType>, C, kBend, kTurns>, params, stream);
}
template <DType kType, class C, Bend kBend>
void launch_wide(const BackwardParams& params, cudaStream_t stream) {
  if (params.dq_order == DqOrder::by_turns) {
    launch_with_turns<kType, C, kBend, true>(params, stream);
  } else {
    launch_with_turns<kType, C, kBend, false>(params, stream);
  }
}

template <DType kType, int kHeadDim, Bend kBend>
void run_wide_backward(const BackwardArgs& args) {
  using C = std::conditional_t<kHeadDim == 192, WideDim192, WideDim256>;
  static_assert(C::head_dim == kHeadDim);
  run_by_keys(args, launch_wide<kType, C, kBend>);
}

}  // namespace keyhole::sm90
