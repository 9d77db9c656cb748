// src/kernels/sm80/backward.cuh
// The launches of the backward pass, and which configuration a GPU gets. backward_d*.cu compile
// them for one padded head_dim each.
#pragma once

#include "base/check.h"
#include "kernels/device/backward_call.h"
#include "kernels/device/check_cuda.h"
#include "kernels/sm80/backward_config.h"
#include "kernels/sm80/backward_keys.cuh"
#include "kernels/sm80/backward_launch.h"
#include "kernels/sm80/backward_queries.cuh"
#include "kernels/sm80/gather_launch.h"

namespace keyhole::sm80 {

template <class Kernel>
void launch(Kernel kernel, const BackwardParams& params, int32_t items, int threads, size_t bytes,
            cudaStream_t stream) {
  const int64_t ctas = int64_t{params.sizes.num_heads()} * items;
  KEYHOLE_CHECK(ctas <= INT32_MAX, "sm80.backward: the plan gives ", ctas, " work items; at most ",
                INT32_MAX, " fit one launch: split the batch");
  if (ctas == 0) return;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)),
             "reserving shared memory for sm80.backward");
  // Copies pass the first-level cache by: all of that memory can be shared.
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                  cudaSharedmemCarveoutMaxShared),
             "preferring shared memory for sm80.backward");
  kernel<<<unsigned(ctas), unsigned(threads), bytes, stream>>>(params);
  check_cuda(cudaGetLastError(), "launching sm80.backward");
}

// dk and dv, and dq by atomic addition.
template <class T, class C>
void launch_keys(const BackwardParams& params, cudaStream_t stream) {
  launch(backward_keys<T, C>, params, params.view.t_work.items_per_group, KeysShape<C>::threads,
         sizeof(KeysShared<C>), stream);
}
// dk and dv alone, every addition in a fixed order.
template <class T, class C>
void launch_keys_in_order(const BackwardParams& params, cudaStream_t stream) {
  BackwardParams without_dq = params;
  without_dq.sums.dq = nullptr;
  launch_keys<T, C>(without_dq, stream);
}
template <class T, class C>
void launch_queries(const BackwardParams& params, cudaStream_t stream) {
  launch(backward_queries<T, C>, params, params.view.work.items_per_group, QueriesShape<C>::threads,
         sizeof(QueriesShared<C>), stream);
}

// Two kernels that follow the same tiles.
template <class KeysConfig, class QueriesConfig>
struct Pair {
  using Keys = KeysConfig;
  using Queries = QueriesConfig;
  static_assert(Keys::tile_q == Queries::tile_q && Keys::tile_k == Queries::tile_k);
  static constexpr int64_t shared_bytes = int64_t(
      sizeof(KeysShared<Keys>) > sizeof(QueriesShared<Queries>) ? sizeof(KeysShared<Keys>)
                                                                : sizeof(QueriesShared<Queries>));

  static bool follows(const PlanView& plan) {
    for (const TileView& part : plan.tiles) {
      if (part.tile.q != Keys::tile_q || part.tile.k != Keys::tile_k) return false;
    }
    return true;
  }
  template <class T>
  static void run(const BackwardArgs& args) {
    if (args.deterministic) {
      device::run_backward_parts(args, {.keys = launch_keys_in_order<T, Keys>,
                                        .queries = launch_queries<T, Queries>,
                                        .gather = nullptr,  // nothing is scattered
                                        .needs = needs_of(args),
                                        .bitmaps = BitmapLayout::mma});
    } else {
      device::run_backward_parts(args, {.keys = launch_keys<T, Keys>,
                                        .queries = nullptr,
                                        .gather = launch_gather_backward<T, Keys::head_dim>,
                                        .needs = needs_of(args),
                                        .bitmaps = BitmapLayout::mma});
    }
  }
};

// The first pair that follows the plan's tiles and fits the GPU's shared memory; fewer bytes in
// args.launch force a smaller one.
template <class T, class... Pairs>
void run_what_fits(const BackwardArgs& args) {
  const bool has_run =
      ((Pairs::follows(args.plan) && Pairs::shared_bytes <= args.launch.shared_bytes &&
        (Pairs::template run<T>(args), true)) ||
       ...);
  KEYHOLE_ASSERT(has_run, "sm80.backward was given other tiles than it offers, or only ",
                 args.launch.shared_bytes, " bytes of shared memory per CTA");
}

}  // namespace keyhole::sm80
