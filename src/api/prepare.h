// src/api/prepare.h
// From checked arguments of a public function to a kernel of the table and what it receives.
#pragma once

#include <cmath>
#include <initializer_list>

#include "keyhole/attention.h"
#include "runtime/dispatch.h"
#include "runtime/gpu.h"
#include "runtime/registry.h"

namespace keyhole {

inline Request request_for(Operation operation, const TensorView& q, const TensorView& v,
                           const AttentionOptions& options,
                           std::initializer_list<const TensorView*> tensors) {
  Request request{.backend = options.backend,
                  .operation = operation,
                  .dtype = q.dtype,
                  .head_dim = q.shape[3],
                  .v_head_dim = v.shape[3],
                  .device = q.device,
                  .has_softcap = options.softcap > 0,
                  .is_aligned = rows_are_aligned(tensors)};
  if (q.device.kind == Device::Kind::cuda) {
    request.compute_capability = gpu(q.device).compute_capability;
    request.shared_bytes = gpu(q.device).shared_bytes;
    request.why_no_boxes = why_no_boxes(tensors);
  }
  return request;
}
inline const KernelEntry& choose_for(Operation operation, const TensorView& q, const TensorView& v,
                                     const AttentionOptions& options,
                                     std::initializer_list<const TensorView*> tensors) {
  return choose(kernel_table(), request_for(operation, q, v, options, tensors));
}

inline double scale_of(const AttentionOptions& options, const TensorView& q) {
  return options.scale.value_or(1 / std::sqrt(double(q.shape[3])));
}

template <class Args>
Args args_of(const TensorView& q, const TensorView& k, const TensorView& v,
             const AttentionOptions& options) {
  Args args;
  args.q = q;
  args.k = k;
  args.v = v;
  args.scale = scale_of(options, q);
  args.softcap = options.softcap;
  args.sink = options.sink;
  args.threads = options.threads;
  args.launch.stream = options.stream;
  args.launch.workspace = options.workspace.data;
  args.launch.workspace_bytes = options.workspace.bytes;
  return args;
}

inline ForwardArgs forward_args_of(const TensorView& q, const TensorView& k, const TensorView& v,
                                   const TensorView& out, const TensorView& lse,
                                   const AttentionOptions& options) {
  auto args = args_of<ForwardArgs>(q, k, v, options);
  args.out = out;
  args.lse = lse;
  return args;
}

inline const KernelEntry& choose_for_backward(const TensorView& dout, const TensorView& q,
                                              const TensorView& k, const TensorView& v,
                                              const TensorView& out, const Gradients& gradients,
                                              const AttentionOptions& options) {
  return choose_for(Operation::backward, q, v, options,
                    {&dout, &q, &k, &v, &out, &gradients.dq, &gradients.dk, &gradients.dv});
}
inline BackwardArgs backward_args_of(const TensorView& dout, const TensorView& q,
                                     const TensorView& k, const TensorView& v,
                                     const TensorView& out, const TensorView& lse,
                                     const Gradients& gradients, const AttentionOptions& options) {
  auto args = args_of<BackwardArgs>(q, k, v, options);
  args.dout = dout;
  args.out = out;
  args.lse = lse;
  args.dq = gradients.dq;
  args.dk = gradients.dk;
  args.dv = gradients.dv;
  args.dsink = gradients.dsink;
  args.deterministic = options.deterministic;
  return args;
}

}  // namespace keyhole
