// src/kernels/sm90/backward.cuh
// The launch of the backward kernel. backward_d*.cu compile it for one padded head_dim each.
#pragma once

#include "base/check.h"
#include "kernels/device/backward_call.h"
#include "kernels/device/check_cuda.h"
#include "kernels/sm80/backward_launch.h"
#include "kernels/sm80/gather_launch.h"
#include "kernels/sm90/backward_keys.cuh"
#include "kernels/sm90/backward_launch.h"

namespace keyhole::sm90 {

// dk and dv, and dq.
template <class T, class C>
void launch_keys(const BackwardParams& params, cudaStream_t stream) {
  constexpr int kBytes = sizeof(KeysShared<C>);
  static_assert(kBytes <= kKeysSharedBytes, "does not fit: drop a stage");
  const int ctas = params.view.t_work.shares.num_ctas;
  if (ctas == 0) return;
  constexpr DType kType = std::is_same_v<T, __half> ? DType::f16 : DType::bf16;
  check_cuda(cudaFuncSetAttribute(backward_keys<T, C>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  kBytes),
             "reserving shared memory for sm90.backward");
  backward_keys<T, C><<<unsigned(ctas), kThreads, kBytes, stream>>>(
      params, backward_maps(params, kType, C::tile_q, C::tile_k));
  check_cuda(cudaGetLastError(), "launching sm90.backward");
}

// Whether additions may come in any order, or none do: dq is written, and dk and dv are those of
// one query head, whose chunks are added up in order.
inline bool takes_order_of(const BackwardArgs& args) {
  if (!args.deterministic) return true;
  return device::visits_queries_once(args.plan) && args.q.shape[1] == args.k.shape[1];
}
// Whether the kernel takes the call: tiles of its shape, an order of additions that it keeps, and
// the shared memory that there is, of which a caller may allow less.
template <class C>
bool takes(const BackwardArgs& args) {
  if (!takes_order_of(args)) return false;
  if (args.launch.shared_bytes < int64_t(sizeof(KeysShared<C>))) return false;
  for (const TileView& part : args.plan.tiles) {
    if (part.tile.q != C::tile_q || part.tile.k != C::tile_k) return false;
  }
  return true;
}

inline device::BackwardNeeds needs_of(const BackwardArgs& args) {
  device::BackwardNeeds needs = sm80::needs_of(args);
  needs.writes_queries = true;
  return needs;
}
template <class C>
int64_t workspace(const BackwardArgs& args) {
  return device::backward_workspace_bytes(args,
                                          takes<C>(args) ? needs_of(args) : sm80::needs_of(args));
}

// kHeadDim: what the gathered rows are padded to
template <class T, class C, int kHeadDim = C::head_dim>
void run(const BackwardArgs& args) {
  device::run_backward_parts(args, {.keys = launch_keys<T, C>,
                                    .queries = nullptr,
                                    .gather = sm80::launch_gather_backward<T, kHeadDim>,
                                    .needs = needs_of(args),
                                    .bitmaps = BitmapLayout::mma});
}

}  // namespace keyhole::sm90
