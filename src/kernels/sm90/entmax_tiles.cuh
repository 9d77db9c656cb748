// src/kernels/sm90/entmax_tiles.cuh
// Entmax over the tile lists of a plan, on tensor cores by wgmma, for rows with more keys of weight
// than a list holds: those that the scan left alone where a query tile has several, or all rows.
// entmax_tiles_shared.cuh has the pipeline. A row that does not come out right here (a score or a
// value that is not finite, a search that did not end) stays left alone.
#pragma once

#include "base/check.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/entmax_forward_call.h"
#include "kernels/device/launch.h"
#include "kernels/device/once_per_gpu.h"
#include "kernels/sm90/entmax_launch.h"
#include "kernels/sm90/entmax_tiles_consumer.cuh"

namespace keyhole::sm90 {

template <class T, class C, PowerKind kKind>
__global__ void __launch_bounds__(kScanThreads, 1)
    entmax_tiles(const __grid_constant__ TilesParams p, const __grid_constant__ EntmaxMaps maps,
                 const __grid_constant__ TilesRule rule) {
  extern __shared__ __align__(1024) unsigned char memory[];
  if (p.has_scan && *p.entmax.candidates.num_left < kFewestRowsForTiles) return;
  auto& shared = *reinterpret_cast<TilesShared<C>*>(memory);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();

  const int warp = warp_uniform(int(threadIdx.x / 32));
  if (warp < kScanProducerWarps) {
    shrink_registers<kTilesProducerRegisters>();
    if (warp == 0) TilesKeyProducer<C>(p, maps, shared).load();
    if (threadIdx.x == 32) load_values<C>(maps, shared);
  } else {
    grow_registers<kTilesConsumerRegisters>();
    TilesConsumer<T, C, kKind>(p, rule, shared).run();
    shared.waits.end();
  }
}

// Whether entmax over tiles can take the rows of a call.
inline bool can_follow_tiles(const device::EntmaxParams& p) {
  return !p.power.is_softmax() && p.power.power <= kLargestFastPower && p.top_k == 0 &&
         p.sizes.softcap == 0;
}

// Whether it should take all rows, without a scan: where most have more keys of weight than a list
// holds.
inline bool prefers_tiles(const device::EntmaxParams& p, const TileView& view) {
  constexpr int64_t kKeys = 512;
  return can_follow_tiles(p) && device::has_long_rows(p.power) &&
         int64_t{view.lengths.most} * view.tile.k >= kKeys;
}

template <class T, class C, PowerKind kKind>
void launch_tiles(const device::EntmaxParams& p, const TileView& view, bool has_scan, DType dtype,
                  cudaStream_t stream) {
  constexpr int kBytes = sizeof(TilesShared<C>);
  static_assert(kBytes <= kEntmaxSharedBytes, "does not fit: drop a stage");
  static device::OncePerGpu reserve;
  device::reserve_shared_memory(reserve, entmax_tiles<T, C, kKind>, kBytes,
                                "sm90.entmax_forward over tiles");
  device::launch("sm90.entmax_forward, tiles", entmax_tiles<T, C, kKind>,
                 {unsigned(view.work.shares.num_ctas), kScanThreads, size_t{kBytes}}, stream,
                 TilesParams{p, view, has_scan},
                 entmax_maps(p.sizes, p.q, p.k, p.v, dtype, view.stride, kScanRows, C::tile_k),
                 TilesRule::of(p));
}
// One kernel for each kind: ptxas serialises the products of one that has all four.
template <class T, class C>
void launch_tiles(const device::EntmaxParams& p, const TileView& view, bool has_scan, DType dtype,
                  cudaStream_t stream) {
  switch (kind_of(p.power)) {
    case PowerKind::four:
      return launch_tiles<T, C, PowerKind::four>(p, view, has_scan, dtype, stream);
    case PowerKind::two:
      return launch_tiles<T, C, PowerKind::two>(p, view, has_scan, dtype, stream);
    case PowerKind::steep:
      return launch_tiles<T, C, PowerKind::steep>(p, view, has_scan, dtype, stream);
    case PowerKind::flat:
      return launch_tiles<T, C, PowerKind::flat>(p, view, has_scan, dtype, stream);
  }
}

}  // namespace keyhole::sm90
