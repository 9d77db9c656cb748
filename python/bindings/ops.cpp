// python/bindings/ops.cpp
// Forward and backward over any lists (lists.h), and merge. The GIL is released while they run.
// Tensors are passed as tuples or torch.Tensors (convert.h). NumPy and torch are not linked, so one
// build serves all their releases.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "convert.h"
#include "lists.h"
#include "module.h"
#include "options.h"
#include "torch_memory.h"

namespace keyhole::python {
namespace {

AttentionOptions options_from(nb::handle sink, nb::handle scale, nb::handle softcap,
                              nb::handle alpha, nb::handle top_k, nb::handle backend,
                              nb::handle threads, nb::handle stream) {
  const TensorView sink_view = optional_tensor_from(sink, "sink");
  AttentionOptions options = python::options_from(scale, softcap, backend);
  options.normalizer = normalizer_from(alpha, top_k);
  options.sink = sink_view;
  options.threads = threads_from(threads);
  options.stream = stream_from(stream);
  return options;
}

void forward(nb::handle q, nb::handle k, nb::handle v, nb::handle lists, nb::handle out,
             nb::handle lse, nb::handle support, nb::handle sink, nb::handle scale,
             nb::handle softcap, nb::handle alpha, nb::handle top_k, nb::handle backend,
             nb::handle threads, nb::handle stream) {
  AttentionOptions options =
      options_from(sink, scale, softcap, alpha, top_k, backend, threads, stream);
  options.support = support_from(support);
  const Input q_view(q, "q"), k_view(k, "k"), v_view(v, "v");
  const TensorView out_view = tensor_from(out, "out");
  const TensorView lse_view = optional_tensor_from(lse, "lse");
  const Lists followed = lists_from(lists, q_view);
  TorchWorkspace workspace(q_view);
  options.allocate = workspace.allocator();
  const nb::gil_scoped_release release;
  attention_forward(q_view, k_view, v_view, followed, out_view, lse_view, options);
}

void backward(nb::handle dout, nb::handle dlse, nb::handle q, nb::handle k, nb::handle v,
              nb::handle out, nb::handle lse, nb::handle support, nb::handle lists, nb::handle dq,
              nb::handle dk, nb::handle dv, nb::handle sink, nb::handle dsink, nb::handle scale,
              nb::handle softcap, nb::handle alpha, nb::handle top_k, bool deterministic,
              nb::handle backend, nb::handle threads, nb::handle stream) {
  AttentionOptions options =
      options_from(sink, scale, softcap, alpha, top_k, backend, threads, stream);
  options.support = support_from(support);
  options.deterministic = deterministic;
  options.dlse = optional_tensor_from(dlse, "dlse");
  const Input dout_view(dout, "dout"), q_view(q, "q"), k_view(k, "k"), v_view(v, "v");
  const Input out_view(out, "out");
  const TensorView lse_view = tensor_from(lse, "lse");
  const Lists followed = lists_from(lists, q_view);
  const Gradients gradients{tensor_from(dq, "dq"), tensor_from(dk, "dk"), tensor_from(dv, "dv"),
                            optional_tensor_from(dsink, "dsink")};
  TorchWorkspace workspace(q_view);
  options.allocate = workspace.allocator();
  const nb::gil_scoped_release release;
  attention_backward(dout_view, q_view, k_view, v_view, out_view, lse_view, followed, gradients,
                     options);
}

void merge_results(nb::handle into_out, nb::handle into_lse, nb::handle from_out,
                   nb::handle from_lse, nb::handle stream) {
  const TensorView out = tensor_from(into_out, "into_out"), lse = tensor_from(into_lse, "into_lse");
  const Input other_out(from_out, "from_out");
  const TensorView other_lse = tensor_from(from_lse, "from_lse");
  void* const queue = stream_from(stream);
  const nb::gil_scoped_release release;
  merge(out, lse, other_out, other_lse, queue);
}

using KernelFor = std::string (*)(const TensorView&, const TensorView&, const Lists&,
                                  const AttentionOptions&);
template <KernelFor kernel_for_pass>
std::string kernel_for(nb::handle q, nb::handle v, nb::handle lists, nb::handle sink,
                       nb::handle scale, nb::handle softcap, nb::handle backend, bool deterministic,
                       nb::handle alpha, nb::handle top_k) {
  const TensorView sink_view = optional_tensor_from(sink, "sink");
  AttentionOptions options = python::options_from(scale, softcap, backend);
  options.normalizer = normalizer_from(alpha, top_k);
  options.sink = sink_view;
  options.deterministic = deterministic;
  const TensorView q_view = tensor_from(q, "q"), v_view = tensor_from(v, "v");
  const Lists followed = lists_from(lists, q_view);
  return kernel_for_pass(q_view, v_view, followed, options);
}

}  // namespace

void add_ops(nb::module_& module) {
  using namespace nb::literals;
  module.attr("SUPPORT_KEYS") = kSupportKeys;
  module.def("forward", &forward, "q"_a, "k"_a, "v"_a, "lists"_a, "out"_a, "lse"_a.none(),
             "support"_a.none(), "sink"_a.none(), "scale"_a.none(), "softcap"_a.none(),
             "alpha"_a.none(), "top_k"_a.none(), "backend"_a.none(), "threads"_a, "stream"_a);
  module.def("backward", &backward, "dout"_a, "dlse"_a.none(), "q"_a, "k"_a, "v"_a, "out"_a,
             "lse"_a, "support"_a.none(), "lists"_a, "dq"_a, "dk"_a, "dv"_a, "sink"_a.none(),
             "dsink"_a.none(), "scale"_a.none(), "softcap"_a.none(), "alpha"_a.none(),
             "top_k"_a.none(), "deterministic"_a, "backend"_a.none(), "threads"_a, "stream"_a);
  module.def("merge", &merge_results, "into_out"_a, "into_lse"_a, "from_out"_a, "from_lse"_a,
             "stream"_a);
  module.def("kernel_for_forward", &kernel_for<kernel_for_forward>, "q"_a, "v"_a, "lists"_a,
             "sink"_a.none(), "scale"_a.none(), "softcap"_a.none(), "backend"_a.none(),
             "deterministic"_a = false, "alpha"_a = 1.0, "top_k"_a = 0,
             "The kernel, tile and schedule that forward() would run.");
  module.def("kernel_for_backward", &kernel_for<kernel_for_backward>, "q"_a, "v"_a, "lists"_a,
             "sink"_a.none(), "scale"_a.none(), "softcap"_a.none(), "backend"_a.none(),
             "deterministic"_a = false, "alpha"_a = 1.0, "top_k"_a = 0,
             "The kernel, tile and schedule that backward() would run.");
}

}  // namespace keyhole::python
