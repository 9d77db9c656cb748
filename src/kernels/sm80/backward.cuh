// src/kernels/sm80/backward.cuh
// The launches of the backward pass, and which configuration a GPU gets. Compiled
// as src/kernels/instantiations.cmake lists them.
#pragma once

#include "base/check.h"
#include "kernels/device/backward_call.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/storage.h"
#include "kernels/mma/gather_launch.h"
#include "kernels/sm80/backward_config.h"
#include "kernels/sm80/backward_keys.cuh"
#include "kernels/sm80/backward_launch.h"
#include "kernels/sm80/backward_queries.cuh"

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
  // Copies bypass the L1 cache, so all of its memory can be shared memory.
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                  cudaSharedmemCarveoutMaxShared),
             "preferring shared memory for sm80.backward");
  kernel<<<unsigned(ctas), unsigned(threads), bytes, stream>>>(params);
  check_cuda(cudaGetLastError(), "launching sm80.backward");
}

// dk and dv and, if the schedule adds it here, dq.
template <class T, class C>
void launch_keys(const BackwardParams& params, cudaStream_t stream) {
  launch(backward_keys<T, C>, params, params.view.t_work.items_per_group, KeysShape<C>::threads,
         sizeof(KeysShared<C>), stream);
}
template <class T, class C>
void launch_queries(const BackwardParams& params, cudaStream_t stream) {
  launch(backward_queries<T, C>, params, params.view.work.items_per_group, QueriesShape<C>::threads,
         sizeof(QueriesShared<C>), stream);
}

// Two kernels with the same tiles.
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
    const bool by_queries = args.schedule.dq == DqOrder::by_queries;
    device::run_backward_parts(args, {.keys = launch_keys<T, Keys>,
                                      .queries = by_queries ? launch_queries<T, Queries> : nullptr,
                                      .gather = mma::gather_backward_launch(args),
                                      .spans = mma::span_launches(args),
                                      .bitmaps = BitmapLayout::mma});
  }
};

// The first pair with the plan's tiles that fits the GPU's shared memory. A smaller
// args.launch.shared_bytes selects a smaller one.
template <class T, class... Pairs>
void run_what_fits(const BackwardArgs& args) {
  const bool has_run =
      ((Pairs::follows(args.plan) && Pairs::shared_bytes <= args.launch.shared_bytes &&
        (Pairs::template run<T>(args), true)) ||
       ...);
  KEYHOLE_ASSERT(has_run, "sm80.backward was given other tiles than it offers, or only ",
                 args.launch.shared_bytes, " bytes of shared memory per CTA");
}

template <DType kType, int kHeadDim>
void run_backward(const BackwardArgs& args) {
  using T = device::Storage<kType>;
  if constexpr (kHeadDim == 64) {
    run_what_fits<T, Pair<KeysDim64, QueriesDim64>, Pair<KeysDim64Small, QueriesDim64>,
                  Pair<KeysDim64Fine, QueriesDim64Fine>>(args);
  } else if constexpr (kHeadDim == 96) {
    run_what_fits<T, Pair<KeysDim96, QueriesDim96>, Pair<KeysDim96Small, QueriesDim96Small>>(args);
  } else if constexpr (kHeadDim == 128) {
    run_what_fits<T, Pair<KeysDim128, QueriesDim128>, Pair<KeysDim128Small, QueriesDim128Small>,
                  Pair<KeysDim128Fine, QueriesDim128Fine>,
                  Pair<KeysDim128FineSmall, QueriesDim128Fine>>(args);
  } else if constexpr (kHeadDim == 192) {
    run_what_fits<T, Pair<KeysDim192, QueriesDim192>, Pair<KeysDim192Small, QueriesDim192Small>>(
        args);
  } else {
    static_assert(kHeadDim == 256);
    run_what_fits<T, Pair<KeysDim256, QueriesDim256>, Pair<KeysDim256Medium, QueriesDim256Medium>,
                  Pair<KeysDim256Small, QueriesDim256Small>>(args);
  }
}

}  // namespace keyhole::sm80
