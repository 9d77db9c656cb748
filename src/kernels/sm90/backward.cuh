// src/kernels/sm90/backward.cuh
// The launch of the backward kernel.
#pragma once

#include "kernels/device/storage.h"
#include "kernels/sm90/backward_keys.cuh"
#include "kernels/sm90/backward_launch.h"
#include "kernels/sm90/launch_by_keys.h"

namespace keyhole::sm90 {

template <DType kType, class C, Bend kBend, DqOrder kOrder>
void launch_with_order(const BackwardParams& params, cudaStream_t stream) {
  static device::OncePerGpu reserve;
  launch_by_keys<kType, C, kThreads, sizeof(KeysShared<C>)>(
      reserve, backward_keys<device::Storage<kType>, C, kBend, kOrder>, params, stream);
}
template <DType kType, class C, Bend kBend>
void launch_keys(const BackwardParams& params, cudaStream_t stream) {
  switch (params.dq_order) {
    case DqOrder::written:
      return launch_with_order<kType, C, kBend, DqOrder::written>(params, stream);
    case DqOrder::by_turns:
      return launch_with_order<kType, C, kBend, DqOrder::by_turns>(params, stream);
    default:
      return launch_with_order<kType, C, kBend, DqOrder::atomic>(params, stream);
  }
}

template <DType kType, int kHeadDim, Bend kBend>
void run_backward(const BackwardArgs& args) {
  using C = std::conditional_t<kHeadDim == 64, KeysDim64,
                               std::conditional_t<kHeadDim == 96, KeysDim96, KeysDim128>>;
  static_assert(C::head_dim == kHeadDim);
  run_by_keys(args, launch_keys<kType, C, kBend>);
}

}  // namespace keyhole::sm90
