// src/kernels/simple/forward.cu
#include "base/int_math.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/forward_call.h"
#include "kernels/device/storage.h"
#include "kernels/simple/forward.cuh"
#include "kernels/simple/forward.h"

namespace keyhole::simple {
namespace {

template <class T, class C>
void launch(const ForwardParams& params, cudaStream_t stream) {
  const int64_t items = int64_t{params.sizes.num_heads()} * params.view.work.items_per_group;
  if (items == 0) return;
  const uint32_t grid = uint32_t(narrow(items, "attention: CTAs of a launch"));
  forward<T, C><<<grid, C::threads, 0, stream>>>(params);
  check_cuda(cudaGetLastError(), "launching simple.forward");
}

// head_dim is a loop, but the columns of v are in registers: one kernel for each width of v.
template <class T, int kTileQ, int kTileK>
void launch_width(const ForwardParams& params, cudaStream_t stream) {
  const int32_t cols = params.sizes.v_head_dim;
  if (cols <= 64) return launch<T, ForwardConfig<kTileQ, kTileK, 64>>(params, stream);
  if (cols <= 128) return launch<T, ForwardConfig<kTileQ, kTileK, 128>>(params, stream);
  if (cols <= 256) return launch<T, ForwardConfig<kTileQ, kTileK, 256>>(params, stream);
  KEYHOLE_ASSERT(cols <= 640, "simple.forward was given v with head_dim ", cols);
  return launch<T, ForwardConfig<kTileQ, kTileK, 640>>(params, stream);
}

template <class T>
void launch_tiles(const ForwardParams& params, cudaStream_t stream) {
  const TileShape tile = params.view.tile;
  if (tile == kWideTile) return launch_width<T, kWideTile.q, kWideTile.k>(params, stream);
  KEYHOLE_ASSERT(tile == kNarrowTile, "simple.forward was given tiles of ", to_string(tile));
  return launch_width<T, kNarrowTile.q, kNarrowTile.k>(params, stream);
}

}  // namespace

template <DType kType>
void run_forward(const ForwardArgs& args) {
  device::run_forward_parts(args, launch_tiles<device::Storage<kType>>);
}
template void run_forward<DType::f32>(const ForwardArgs&);
template void run_forward<DType::f16>(const ForwardArgs&);
template void run_forward<DType::bf16>(const ForwardArgs&);

}  // namespace keyhole::simple
