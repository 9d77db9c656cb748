// src/api/attention.cpp
// The public functions: check the arguments once, choose a kernel, run it.
#include "keyhole/attention.h"

#include <cmath>

#include "api/check_arguments.h"
#include "runtime/dispatch.h"
#include "runtime/registry.h"

namespace keyhole {
namespace {

const KernelEntry& choose_for(Operation operation, const TensorView& q, const TensorView& v,
                              const AttentionOptions& options) {
  return choose(kernel_table(), {options.backend, operation, q.dtype, q.shape[3], v.shape[3]});
}

double scale_of(const AttentionOptions& options, const TensorView& q) {
  return options.scale.value_or(1 / std::sqrt(double(q.shape[3])));
}

}  // namespace

void attention_forward(const TensorView& q, const TensorView& k, const TensorView& v,
                       const Plan& plan, const TensorView& out, const TensorView& lse,
                       const AttentionOptions& options) {
  check_forward(q, k, v, plan, out, lse, options);
  const KernelEntry& kernel = choose_for(Operation::forward, q, v, options);
  ForwardArgs args;
  args.q = q;
  args.k = k;
  args.v = v;
  args.out = out;
  args.lse = lse;
  args.scale = scale_of(options, q);
  args.softcap = options.softcap;
  args.sink = options.sink;
  args.threads = options.threads;
  run_forward(kernel, plan, pick_tile(kernel, plan), args);
}

void attention_backward(const TensorView& dout, const TensorView& q, const TensorView& k,
                        const TensorView& v, const TensorView& out, const TensorView& lse,
                        const Plan& plan, const Gradients& gradients,
                        const AttentionOptions& options) {
  check_backward(dout, q, k, v, out, lse, plan, gradients, options);
  const KernelEntry& kernel = choose_for(Operation::backward, q, v, options);
  BackwardArgs args;
  args.dout = dout;
  args.q = q;
  args.k = k;
  args.v = v;
  args.out = out;
  args.lse = lse;
  args.dq = gradients.dq;
  args.dk = gradients.dk;
  args.dv = gradients.dv;
  args.sink = options.sink;
  args.dsink = gradients.dsink;
  args.scale = scale_of(options, q);
  args.softcap = options.softcap;
  args.threads = options.threads;
  run_backward(kernel, plan, pick_tile(kernel, plan), args);
}

std::string kernel_for_forward(const TensorView& q, const TensorView& v, const Plan& plan,
                               const AttentionOptions& options) {
  const KernelEntry& kernel = choose_for(Operation::forward, q, v, options);
  return kernel.name + " with tile " + to_string(pick_tile(kernel, plan));
}

}  // namespace keyhole
