// src/kernels/sm90/entmax_backward.cuh
// The launches over tiles of the backward pass of entmax: delta, then dk, dv and dq.
#pragma once

#include <type_traits>

#include "base/check.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/entmax_backward_call.h"
#include "kernels/device/entmax_backward_tiles.h"
#include "kernels/device/launch.h"
#include "kernels/device/once_per_gpu.h"
#include "kernels/device/storage.h"
#include "kernels/mma/entmax_lists.h"
#include "kernels/sm90/backward_keys.cuh"
#include "kernels/sm90/entmax_backward_launch.h"
#include "kernels/sm90/entmax_delta.cuh"

namespace keyhole::sm90 {

// The backward kernel of softmax with another rule, over the query tiles that have tiled rows.
template <class T, class C, int kWhole>
__global__ void __launch_bounds__(kThreads, 1)
    entmax_keys(const __grid_constant__ BackwardParams p, const __grid_constant__ BackwardMaps maps,
                const __grid_constant__ EntmaxNumbers numbers,
                const __grid_constant__ device::TiledRows tiled,
                const device::EntmaxCounters* counters) {
  if (counters->any_tiled == 0) return;
  follow_keys<DqOrder::atomic, T, C, EntmaxKeys<kWhole>>(p, maps, numbers, ChosenTiles(tiled));
}

inline EntmaxNumbers numbers_of(const device::TiledRows& tiled) {
  return {tiled.unit, tiled.power - 1};
}

// Calls launch with r as a constant: 2, 4, or 0 for any other.
template <class Launch>
void with_whole_power(const device::TiledRows& tiled, Launch launch) {
  if (tiled.whole == 4) return launch(std::integral_constant<int, 4>());
  if (tiled.whole == 2) return launch(std::integral_constant<int, 2>());
  launch(std::integral_constant<int, 0>());
}

template <DType kType, class C>
void launch_delta(const device::EntmaxBackwardParams& p, const TileView& view,
                  int32_t heads_per_section, cudaStream_t stream) {
  using T = device::Storage<kType>;
  constexpr int kBytes = sizeof(DeltaShared<C>);
  static_assert(kBytes <= kKeysSharedBytes, "does not fit: drop a stage");
  const int64_t ctas = int64_t{p.sizes.num_heads()} * view.work.items_per_group;
  const unsigned grid = unsigned(narrow(ctas, "attention: query tiles of all heads"));
  const DeltaMaps maps = {
      key_maps(p.sizes, p.k, kType, view.stride, C::tile_k),
      value_maps(p.sizes, p.v, kType, view.stride, C::tile_k),
  };
  with_whole_power(p.tiled, [&](auto whole) {
    static device::OncePerGpu reserve;
    device::reserve_shared_memory(reserve, entmax_delta<T, C, whole()>, kBytes,
                                  "sm90.entmax_backward");
    device::launch("sm90.entmax_backward, delta", entmax_delta<T, C, whole()>,
                   {grid, kDeltaThreads, size_t{kBytes}}, stream,
                   {p, view, numbers_of(p.tiled), heads_per_section}, maps);
  });
}

// Not early (launch.h): its planner reads which tiles are chosen, as the launch before finds out.
template <DType kType, class C>
void launch_entmax_keys(const device::EntmaxBackwardParams& p, const BackwardParams& keys,
                        cudaStream_t stream) {
  using T = device::Storage<kType>;
  constexpr int kBytes = sizeof(KeysShared<C>);
  const int ctas = keys.view.t_work.shares.num_ctas;
  KEYHOLE_ASSERT(ctas > 0, "sm90.entmax_backward was given lists without work items for CTAs");
  const BackwardMaps maps = backward_maps(keys, kType, C::tile_q, C::tile_k);
  with_whole_power(p.tiled, [&](auto whole) {
    static device::OncePerGpu reserve;
    device::reserve_shared_memory(reserve, entmax_keys<T, C, whole()>, kBytes,
                                  "sm90.entmax_backward");
    device::launch("sm90.entmax_backward, keys", entmax_keys<T, C, whole()>,
                   {unsigned(ctas), kThreads, size_t{kBytes}}, stream, keys, maps,
                   numbers_of(p.tiled), p.tiled, p.counters);
  });
}

template <DType kType, int kHeadDim>
void run_entmax_backward(const BackwardArgs& args) {
  using C = std::conditional_t<kHeadDim == 64, KeysDim64, KeysDim128>;
  static_assert(C::head_dim == kHeadDim);
  const device::EntmaxTileLaunches launches = {launch_delta<kType, C>,
                                               launch_entmax_keys<kType, C>};
  device::run_entmax_backward(args, BitmapLayout::mma, &mma::entmax_list_launches(), &launches);
}

}  // namespace keyhole::sm90
