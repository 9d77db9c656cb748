// python/bindings/ops.cpp
// Forward and backward, over a plan and over an index tensor, and merge. The GIL is released while
// they run; tensors are tuples (convert.h), so that nothing of NumPy or torch is linked and one
// build serves all their releases.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "convert.h"
#include "keyhole/gather.h"
#include "module.h"
#include "options.h"

namespace keyhole::python {
namespace {

AttentionOptions options_from(nb::handle sink, nb::handle scale, nb::handle softcap,
                              nb::handle backend, nb::handle threads, nb::handle stream) {
  const TensorView sink_view = optional_tensor_from(sink, "sink");
  AttentionOptions options = python::options_from(scale, softcap, backend);
  options.sink = sink_view;
  options.threads = threads_from(threads);
  options.stream = stream_from(stream);
  return options;
}

void forward(nb::handle q, nb::handle k, nb::handle v, const Plan& plan, nb::handle out,
             nb::handle lse, nb::handle sink, nb::handle scale, nb::handle softcap,
             nb::handle backend, nb::handle threads, nb::handle stream) {
  const AttentionOptions options = options_from(sink, scale, softcap, backend, threads, stream);
  const Input q_view(q, "q"), k_view(k, "k"), v_view(v, "v");
  const TensorView out_view = tensor_from(out, "out");
  const TensorView lse_view = optional_tensor_from(lse, "lse");
  const nb::gil_scoped_release release;
  attention_forward(q_view, k_view, v_view, plan, out_view, lse_view, options);
}

void backward(nb::handle dout, nb::handle q, nb::handle k, nb::handle v, nb::handle out,
              nb::handle lse, const Plan& plan, nb::handle dq, nb::handle dk, nb::handle dv,
              nb::handle sink, nb::handle dsink, nb::handle scale, nb::handle softcap,
              bool deterministic, nb::handle backend, nb::handle threads, nb::handle stream) {
  AttentionOptions options = options_from(sink, scale, softcap, backend, threads, stream);
  options.deterministic = deterministic;
  const Input dout_view(dout, "dout"), q_view(q, "q"), k_view(k, "k"), v_view(v, "v");
  const Input out_view(out, "out");
  const TensorView lse_view = tensor_from(lse, "lse");
  const Gradients gradients{tensor_from(dq, "dq"), tensor_from(dk, "dk"), tensor_from(dv, "dv"),
                            optional_tensor_from(dsink, "dsink")};
  const nb::gil_scoped_release release;
  attention_backward(dout_view, q_view, k_view, v_view, out_view, lse_view, plan, gradients,
                     options);
}

// Queries of a tensor whose shape is still to be checked.
int64_t length_of(const TensorView& q) { return q.rank == 4 ? q.shape[2] : 0; }

GatherOptions gather_options_from(nb::handle sink, nb::handle scale, nb::handle softcap,
                                  nb::handle backend, nb::handle threads, nb::handle stream) {
  return {options_from(sink, scale, softcap, backend, threads, stream)};
}

void gather_forward(nb::handle q, nb::handle k, nb::handle v, nb::handle indices, nb::handle out,
                    nb::handle lse, nb::handle sink, nb::handle scale, nb::handle softcap,
                    nb::handle backend, nb::handle threads, nb::handle stream) {
  const GatherOptions options = gather_options_from(sink, scale, softcap, backend, threads, stream);
  const Input q_view(q, "q"), k_view(k, "k"), v_view(v, "v");
  const TensorView out_view = tensor_from(out, "out");
  const TensorView lse_view = optional_tensor_from(lse, "lse");
  const IndexView index_view = indices_from(indices, length_of(q_view));
  const nb::gil_scoped_release release;
  gather_attention_forward(q_view, k_view, v_view, index_view, out_view, lse_view, options);
}

void gather_backward(nb::handle dout, nb::handle q, nb::handle k, nb::handle v, nb::handle out,
                     nb::handle lse, nb::handle indices, nb::handle dq, nb::handle dk,
                     nb::handle dv, nb::handle sink, nb::handle dsink, nb::handle scale,
                     nb::handle softcap, bool deterministic, nb::handle backend, nb::handle threads,
                     nb::handle stream) {
  GatherOptions options = gather_options_from(sink, scale, softcap, backend, threads, stream);
  options.deterministic = deterministic;
  const Input dout_view(dout, "dout"), q_view(q, "q"), k_view(k, "k"), v_view(v, "v");
  const Input out_view(out, "out");
  const TensorView lse_view = tensor_from(lse, "lse");
  const IndexView index_view = indices_from(indices, length_of(q_view));
  const Gradients gradients{tensor_from(dq, "dq"), tensor_from(dk, "dk"), tensor_from(dv, "dv"),
                            optional_tensor_from(dsink, "dsink")};
  const nb::gil_scoped_release release;
  gather_attention_backward(dout_view, q_view, k_view, v_view, out_view, lse_view, index_view,
                            gradients, options);
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

std::string kernel_for(nb::handle q, nb::handle v, const Plan& plan, nb::handle sink,
                       nb::handle scale, nb::handle softcap, nb::handle backend) {
  const TensorView sink_view = optional_tensor_from(sink, "sink");
  AttentionOptions options = python::options_from(scale, softcap, backend);
  options.sink = sink_view;
  const TensorView q_view = tensor_from(q, "q"), v_view = tensor_from(v, "v");
  return kernel_for_forward(q_view, v_view, plan, options);
}

}  // namespace

void add_ops(nb::module_& module) {
  using namespace nb::literals;
  module.def("forward", &forward, "q"_a, "k"_a, "v"_a, "plan"_a, "out"_a, "lse"_a.none(),
             "sink"_a.none(), "scale"_a.none(), "softcap"_a.none(), "backend"_a.none(), "threads"_a,
             "stream"_a);
  module.def("backward", &backward, "dout"_a, "q"_a, "k"_a, "v"_a, "out"_a, "lse"_a, "plan"_a,
             "dq"_a, "dk"_a, "dv"_a, "sink"_a.none(), "dsink"_a.none(), "scale"_a.none(),
             "softcap"_a.none(), "deterministic"_a, "backend"_a.none(), "threads"_a, "stream"_a);
  module.def("gather_forward", &gather_forward, "q"_a, "k"_a, "v"_a, "indices"_a, "out"_a,
             "lse"_a.none(), "sink"_a.none(), "scale"_a.none(), "softcap"_a.none(),
             "backend"_a.none(), "threads"_a, "stream"_a);
  module.def("gather_backward", &gather_backward, "dout"_a, "q"_a, "k"_a, "v"_a, "out"_a, "lse"_a,
             "indices"_a, "dq"_a, "dk"_a, "dv"_a, "sink"_a.none(), "dsink"_a.none(),
             "scale"_a.none(), "softcap"_a.none(), "deterministic"_a, "backend"_a.none(),
             "threads"_a, "stream"_a);
  module.def("merge", &merge_results, "into_out"_a, "into_lse"_a, "from_out"_a, "from_lse"_a,
             "stream"_a);
  module.def("kernel_for_forward", &kernel_for, "q"_a, "v"_a, "plan"_a, "sink"_a.none(),
             "scale"_a.none(), "softcap"_a.none(), "backend"_a.none(),
             "The name of the kernel that forward() would run.");
}

}  // namespace keyhole::python
