// src/api/gather.cpp
// Attention over an index tensor: check the arguments once, choose a kernel, let it follow the
// tensor where it lies.
#include "keyhole/gather.h"

#include "api/check_arguments.h"
#include "api/check_indices.h"
#include "api/prepare.h"

namespace keyhole {
namespace {

void check_entries(const GatherView& lists, const Device& device, const GatherOptions& options) {
  if (!options.check_indices || device.kind == Device::Kind::cpu) return;
  if (const auto bad = find_bad_entry_on_gpu(lists, device, options.stream)) refuse(lists, *bad);
}

}  // namespace

void gather_attention_forward(const TensorView& q, const TensorView& k, const TensorView& v,
                              const IndexView& indices, const TensorView& out,
                              const TensorView& lse, const GatherOptions& options) {
  check_forward(q, k, v, out, lse, options);
  check_indices(indices, q, k);
  check_no_overlap(out, "out", memory_of(indices), "indices");
  check_no_overlap(lse, "lse", memory_of(indices), "indices");
  const KernelEntry& kernel = choose_for(Operation::forward, q, v, options, {&q, &k, &v, &out});
  const GatherView lists = lists_of(indices, q, k);
  check_entries(lists, q.device, options);
  run_forward(kernel, lists, forward_args_of(q, k, v, out, lse, options));
}

void gather_attention_backward(const TensorView& dout, const TensorView& q, const TensorView& k,
                               const TensorView& v, const TensorView& out, const TensorView& lse,
                               const IndexView& indices, const Gradients& gradients,
                               const GatherOptions& options) {
  check_backward(dout, q, k, v, out, lse, gradients, options);
  check_indices(indices, q, k);
  for (const auto& [tensor, name] : {std::pair{&gradients.dq, "dq"},
                                     {&gradients.dk, "dk"},
                                     {&gradients.dv, "dv"},
                                     {&gradients.dsink, "dsink"}}) {
    check_no_overlap(*tensor, name, memory_of(indices), "indices");
  }
  const KernelEntry& kernel = choose_for_backward(dout, q, k, v, out, gradients, options);
  const GatherView lists = lists_of(indices, q, k);
  check_entries(lists, q.device, options);
  run_backward(kernel, lists, backward_args_of(dout, q, k, v, out, lse, gradients, options));
}

int64_t gather_forward_workspace_bytes(const TensorView& q, const TensorView& k,
                                       const TensorView& v, const IndexView& indices,
                                       const GatherOptions& options) {
  if (q.device.kind == Device::Kind::cpu) return 0;
  check_indices(indices, q, k);
  const KernelEntry& kernel = choose_for(Operation::forward, q, v, options, {&q, &k, &v});
  return forward_workspace_on_gpu(kernel, lists_of(indices, q, k),
                                  args_of<ForwardArgs>(q, k, v, options));
}

int64_t gather_backward_workspace_bytes(const TensorView& q, const TensorView& k,
                                        const TensorView& v, const IndexView& indices,
                                        const GatherOptions& options) {
  if (q.device.kind == Device::Kind::cpu) return 0;
  check_indices(indices, q, k);
  const KernelEntry& kernel = choose_for(Operation::backward, q, v, options, {&q, &k, &v});
  auto args = args_of<BackwardArgs>(q, k, v, options);
  args.deterministic = options.deterministic;
  return backward_workspace_on_gpu(kernel, lists_of(indices, q, k), args);
}

}  // namespace keyhole
