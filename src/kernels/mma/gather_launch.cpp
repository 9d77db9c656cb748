// src/kernels/mma/gather_launch.cpp
#include "kernels/mma/gather_launch.h"

#include <algorithm>

#include "base/check.h"

namespace keyhole::mma {
namespace {

// Calls visit with the padded head_dim, as an integral constant.
template <class Visit>
auto with_padded(int64_t head_dim, Visit visit) {
  if (head_dim <= 64) return visit(std::integral_constant<int, 64>());
  if (head_dim <= 96) return visit(std::integral_constant<int, 96>());
  if (head_dim <= 128) return visit(std::integral_constant<int, 128>());
  if (head_dim <= 192) return visit(std::integral_constant<int, 192>());
  KEYHOLE_ASSERT(head_dim <= 256, "key lists on tensor cores were given head_dim ", head_dim);
  return visit(std::integral_constant<int, 256>());
}

int64_t widest(const TensorView& q, const TensorView& v) {
  return std::max(q.shape[3], v.shape[3]);
}

}  // namespace

device::LaunchGather gather_forward_launch(const ForwardArgs& args) {
  return with_padded(widest(args.q, args.v), [&](auto padded) -> device::LaunchGather {
    return args.q.dtype == DType::f16 ? launch_gather_forward<DType::f16, padded()>
                                      : launch_gather_forward<DType::bf16, padded()>;
  });
}

device::LaunchGatherBackward gather_backward_launch(const BackwardArgs& args) {
  if (args.schedule.key_lists != KeyListOrder::atomic) return nullptr;
  return with_padded(widest(args.q, args.v), [&](auto padded) -> device::LaunchGatherBackward {
    return args.q.dtype == DType::f16 ? launch_gather_backward<DType::f16, padded()>
                                      : launch_gather_backward<DType::bf16, padded()>;
  });
}

device::SpanLaunches span_launches(const BackwardArgs& args) {
  if (args.schedule.key_lists != KeyListOrder::by_span) return {};
  return with_padded(widest(args.q, args.v), [&](auto padded) -> device::SpanLaunches {
    return args.q.dtype == DType::f16
               ? device::SpanLaunches{launch_gather_weights<DType::f16, padded()>,
                                      span_sums_launch(DType::f16, args.launch.shared_bytes)}
               : device::SpanLaunches{launch_gather_weights<DType::bf16, padded()>,
                                      span_sums_launch(DType::bf16, args.launch.shared_bytes)};
  });
}

}  // namespace keyhole::mma
