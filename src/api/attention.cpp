// src/api/attention.cpp
// The public functions: check the arguments once, choose a kernel, run it.
#include "keyhole/attention.h"

#include <cmath>

#include "api/check_arguments.h"
#include "runtime/dispatch.h"
#include "runtime/gpu.h"
#include "runtime/registry.h"

namespace keyhole {
namespace {

const KernelEntry& choose_for(Operation operation, const TensorView& q, const TensorView& v,
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
  return choose(kernel_table(), request);
}

double scale_of(const AttentionOptions& options, const TensorView& q) {
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

}  // namespace

void attention_forward(const TensorView& q, const TensorView& k, const TensorView& v,
                       const Plan& plan, const TensorView& out, const TensorView& lse,
                       const AttentionOptions& options) {
  check_forward(q, k, v, plan, out, lse, options);
  const KernelEntry& kernel = choose_for(Operation::forward, q, v, options, {&q, &k, &v, &out});
  auto args = args_of<ForwardArgs>(q, k, v, options);
  args.out = out;
  args.lse = lse;
  run_forward(kernel, plan, pick_tile(kernel, plan), args);
}

void attention_backward(const TensorView& dout, const TensorView& q, const TensorView& k,
                        const TensorView& v, const TensorView& out, const TensorView& lse,
                        const Plan& plan, const Gradients& gradients,
                        const AttentionOptions& options) {
  check_backward(dout, q, k, v, out, lse, plan, gradients, options);
  const KernelEntry& kernel =
      choose_for(Operation::backward, q, v, options,
                 {&dout, &q, &k, &v, &out, &gradients.dq, &gradients.dk, &gradients.dv});
  auto args = args_of<BackwardArgs>(q, k, v, options);
  args.dout = dout;
  args.out = out;
  args.lse = lse;
  args.dq = gradients.dq;
  args.dk = gradients.dk;
  args.dv = gradients.dv;
  args.dsink = gradients.dsink;
  args.deterministic = options.deterministic;
  run_backward(kernel, plan, pick_tile(kernel, plan), args);
}

int64_t forward_workspace_bytes(const TensorView& q, const TensorView& k, const TensorView& v,
                                const Plan& plan, const AttentionOptions& options) {
  if (q.device.kind == Device::Kind::cpu) return 0;
  const KernelEntry& kernel = choose_for(Operation::forward, q, v, options, {&q, &k, &v});
  return forward_workspace_on_gpu(kernel, plan, pick_tile(kernel, plan),
                                  args_of<ForwardArgs>(q, k, v, options));
}

int64_t backward_workspace_bytes(const TensorView& q, const TensorView& k, const TensorView& v,
                                 const Plan& plan, const AttentionOptions& options) {
  if (q.device.kind == Device::Kind::cpu) return 0;
  const KernelEntry& kernel = choose_for(Operation::backward, q, v, options, {&q, &k, &v});
  auto args = args_of<BackwardArgs>(q, k, v, options);
  args.deterministic = options.deterministic;
  return backward_workspace_on_gpu(kernel, plan, pick_tile(kernel, plan), args);
}

std::string kernel_for_forward(const TensorView& q, const TensorView& v, const Plan& plan,
                               const AttentionOptions& options) {
  const KernelEntry& kernel = choose_for(Operation::forward, q, v, options, {&q, &v});
  return kernel.name + " with tile " + to_string(pick_tile(kernel, plan));
}

}  // namespace keyhole
