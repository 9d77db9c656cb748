// src/kernels/sm90/forward.cuh
// Attention over the tile lists of one part of a plan, on tensor cores by wgmma: q, k, v and lists
// in, out and lse (or states, or slots) out. forward_shared.cuh has the pipeline and its roles,
// forward_config.h the sizes.
#pragma once

#include "base/check.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/forward_call.h"
#include "kernels/device/launch.h"
#include "kernels/device/once_per_gpu.h"
#include "kernels/device/storage.h"
#include "kernels/mma/gather_launch.h"
#include "kernels/sm90/forward_consumer.cuh"
#include "kernels/sm90/forward_launch.h"
#include "kernels/sm90/forward_producer.cuh"

namespace keyhole::sm90 {

template <class T, class C, Bend kBend>
__global__ void __launch_bounds__(ForwardShape<C>::threads, C::ctas_per_sm)
    forward(const __grid_constant__ ForwardParams p, const __grid_constant__ ForwardMaps maps,
            const __grid_constant__ CallRule<kBend> call) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<ForwardShared<C>*>(memory);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();

  const int warp = __shfl_sync(~0u, int(threadIdx.x / 32), 0);  // makes it provably warp-uniform
  if (warp < kProducerWarps) {
    shrink_registers<ForwardShape<C>::producer_registers>();
    if (threadIdx.x == 0) Producer<C>(maps, shared).load();
    if (threadIdx.x == 32) plan<C>(p, maps, shared);
  } else {
    grow_registers<ForwardShape<C>::consumer_registers>();
    Consumer<T, C, kBend>(p, call, shared, warp - kProducerWarps).multiply();
    shared.waits.end();
  }
}

template <class T, class C, Bend kBend>
void launch_forward(const ForwardParams& p, cudaStream_t stream) {
  constexpr int kBytes = sizeof(ForwardShared<C>);
  static_assert(kBytes <= kForwardSharedBytes, "does not fit: drop a stage");
  static_assert(C::ctas_per_sm * (kBytes + 1024) <= 228 * 1024, "so many CTAs do not fit an SM");
  const int ctas = p.view.work.shares.num_ctas;
  KEYHOLE_ASSERT(ctas > 0, "sm90.forward was given lists without work items for CTAs");
  constexpr DType kType = std::is_same_v<T, __half> ? DType::f16 : DType::bf16;
  static device::OncePerGpu reserve;
  device::reserve_shared_memory(reserve, forward<T, C, kBend>, kBytes, "sm90.forward");
  device::launch("sm90.forward", forward<T, C, kBend>,
                 {unsigned(ctas), ForwardShape<C>::threads, size_t{kBytes}}, stream, p,
                 forward_maps(p, kType, C::tile_q, C::tile_k), call_rule<kBend>(p.sizes));
}

// The configuration with the tile of the lists.
template <class T, Bend kBend, class... Configs>
void launch_by_tile(const ForwardParams& p, cudaStream_t stream) {
  const TileShape tile = p.view.tile;
  const bool is_known =
      ((tile == tile_of<Configs>() && (launch_forward<T, Configs, kBend>(p, stream), true)) || ...);
  KEYHOLE_ASSERT(is_known, "sm90.forward was given tiles of ", to_string(tile));
}

template <class T, int kHeadDim, Bend kBend>
constexpr device::LaunchTiles launch_for() {
  // With a softcap, short lists use the large tile too: one kernel fewer to compile.
  constexpr bool kHasShort = kBend == Bend::none;
  if constexpr (kHeadDim == 64) {
    if constexpr (kHasShort) return launch_by_tile<T, kBend, ForwardDim64, ForwardDim64Short>;
    return launch_by_tile<T, kBend, ForwardDim64>;
  } else if constexpr (kHeadDim == 96) {
    return launch_by_tile<T, kBend, ForwardDim96>;
  } else if constexpr (kHeadDim == 128) {
    if constexpr (kHasShort) return launch_by_tile<T, kBend, ForwardDim128, ForwardDim128Short>;
    return launch_by_tile<T, kBend, ForwardDim128>;
  } else if constexpr (kHeadDim == 192) {
    return launch_by_tile<T, kBend, ForwardDim192>;
  } else {
    static_assert(kHeadDim == 256);
    return launch_by_tile<T, kBend, ForwardDim256>;
  }
}

template <DType kType, int kHeadDim, Bend kBend>
void run_forward(const ForwardArgs& args) {
  device::run_forward_parts(args, launch_for<device::Storage<kType>, kHeadDim, kBend>(),
                            mma::gather_forward_launch(args));
}

}  // namespace keyhole::sm90
