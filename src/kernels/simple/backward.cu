// src/kernels/simple/backward.cu
#include "base/int_math.h"
#include "kernels/device/backward_call.h"
#include "kernels/device/check_cuda.h"
#include "kernels/simple/backward.cuh"
#include "kernels/simple/backward.h"

namespace keyhole::simple {
namespace {

template <class Storage, class C, bool kKeysStay>
void launch_tile(const BackwardParams& params, cudaStream_t stream) {
  static_assert(sizeof(BackwardShared<C>) <= 48 * 1024, "more must be asked for at launch");
  const device::Sizes& sizes = params.sizes;
  const TileView& view = params.view;
  const int64_t units = int64_t{sizes.batch} * (kKeysStay ? sizes.kv_heads : sizes.heads);
  const int64_t lists = int64_t{view.classes} * (kKeysStay ? view.k_tiles : view.q_tiles);
  const int32_t ctas = narrow(checked_mul(units, lists * num_slices<kKeysStay>(sizes), "CTAs"),
                              "simple.backward: CTAs");
  if (ctas == 0) return;
  gradients<Storage, C, kKeysStay><<<unsigned(ctas), kThreads<C>, 0, stream>>>(params);
  check_cuda(cudaGetLastError(), "launching simple.backward");
}

template <class Storage, bool kKeysStay>
void launch(const BackwardParams& params, cudaStream_t stream) {
  const TileShape tile = params.view.tile;
  KEYHOLE_ASSERT(tile.q == tile.k && (tile.q == 64 || tile.q == 32), "simple.backward with tile ",
                 tile.q, "x", tile.k);
  if (tile.q == 64) {
    launch_tile<Storage, Tile64, kKeysStay>(params, stream);
  } else {
    launch_tile<Storage, Tile32, kKeysStay>(params, stream);
  }
}

}  // namespace

void backward(const BackwardArgs& args) {
  device::with_device_storage(args.q.dtype, [&](auto storage) {
    using Storage = decltype(storage);
    device::run_backward_parts(args,
                               {.keys = launch<Storage, true>, .queries = launch<Storage, false>});
  });
}

}  // namespace keyhole::simple
