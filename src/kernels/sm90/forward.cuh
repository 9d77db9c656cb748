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
#include "kernels/sm80/gather_launch.h"
#include "kernels/sm90/forward_launch.h"
#include "kernels/sm90/forward_loader.cuh"
#include "kernels/sm90/forward_multiplier.cuh"

namespace keyhole::sm90 {

template <class T, class C>
__global__ void __launch_bounds__(ForwardShape<C>::threads, C::ctas_per_sm)
    forward(const __grid_constant__ ForwardParams p, const __grid_constant__ ForwardMaps maps,
            const __grid_constant__ ScoreRule rule) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<ForwardShared<C>*>(memory);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();

  const int warp = __shfl_sync(~0u, int(threadIdx.x / 32), 0);  // the compiler sees: of all lanes
  if (warp < kLoaderWarps) {
    shrink_registers<ForwardShape<C>::loader_registers>();
    if (threadIdx.x == 0) Loader<C>(maps, shared).load();
    if (threadIdx.x == 32) plan<C>(p, maps, shared);
  } else {
    grow_registers<ForwardShape<C>::multiplier_registers>();
    Multiplier<T, C>(p, rule, shared, warp - kLoaderWarps).multiply();
    shared.waits.end();
  }
}

template <class T, class C>
void launch_forward(const ForwardParams& p, cudaStream_t stream) {
  constexpr int kBytes = sizeof(ForwardShared<C>);
  static_assert(kBytes <= kForwardSharedBytes, "does not fit: drop a stage");
  static_assert(C::ctas_per_sm * (kBytes + 1024) <= 228 * 1024, "so many CTAs do not fit an SM");
  const int ctas = p.view.work.shares.num_ctas;
  if (ctas == 0) return;
  constexpr DType kType = std::is_same_v<T, __half> ? DType::f16 : DType::bf16;
  static device::OncePerGpu reserve;
  reserve([] {
    check_cuda(
        cudaFuncSetAttribute(forward<T, C>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
        "reserving shared memory for sm90.forward");
  });
  device::launch("sm90.forward", forward<T, C>,
                 {unsigned(ctas), ForwardShape<C>::threads, size_t{kBytes}}, stream, p,
                 forward_maps(p, kType, C::tile_q, C::tile_k), score_rule(p.sizes.scale));
}

// The configuration whose tiles the plan has.
template <class T, class... Configs>
void launch_by_tile(const ForwardParams& p, cudaStream_t stream) {
  const TileShape tile = p.view.tile;
  const bool is_known =
      ((tile == tile_of<Configs>() && (launch_forward<T, Configs>(p, stream), true)) || ...);
  KEYHOLE_ASSERT(is_known, "sm90.forward was given tiles of ", to_string(tile));
}

}  // namespace keyhole::sm90
