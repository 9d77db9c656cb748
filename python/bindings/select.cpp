// python/bindings/select.cpp
// Keys chosen from data: scores, the best keys, and the loss of an indexer. Tensors are passed as
// tuples or torch.Tensors (convert.h), plans as _core.Plan. The GIL is released while they run.
#include "keyhole/select.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "convert.h"
#include "lists.h"
#include "module.h"
#include "options.h"
#include "torch_memory.h"

namespace keyhole::python {
namespace {

Input optional_input(nb::handle tensor, const char* name) {
  return tensor.is_none() ? Input() : Input(tensor, name);
}

std::optional<Plan> optional_plan(nb::handle plan, const char* name) {
  if (plan.is_none()) return {};
  if (!nb::isinstance<Plan>(plan)) raise_type_error(name, "a _core.Plan or None", plan);
  return nb::cast<const Plan&>(plan);
}

// The four tensors of an indexer, and the copies that some of them need.
class Indexer {
 public:
  Indexer(nb::handle q, nb::handle k, nb::handle w, nb::handle k_scale)
      : q_(q, "index_q", DType::e4m3),
        k_(k, "index_k", DType::e4m3),
        w_(optional_input(w, "w")),
        k_scale_(optional_input(k_scale, "k_scale")) {}
  operator IndexerView() const { return {.q = q_, .k = k_, .w = w_, .k_scale = k_scale_}; }
  const TensorView& q() const { return q_; }

 private:
  Input q_, k_, w_, k_scale_;
};

SelectOptions options_from(nb::handle k, nb::handle visible, nb::handle always, nb::handle backend,
                           nb::handle threads, nb::handle stream) {
  SelectOptions options;
  options.k = integer_from(k, "k");
  options.visible = optional_plan(visible, "visible");
  options.always = optional_plan(always, "always");
  set_backend(options.backend, backend);
  options.threads = threads_from(threads);
  options.stream = stream_from(stream);
  return options;
}

Selection selection_from(nb::handle indices, nb::handle counts) {
  Selection selection;
  selection.indices = indices_from(indices, "indices", 4, "[batch, groups, q_len, k]");
  if (!counts.is_none()) {
    selection.counts = indices_from(counts, "counts", 4, "[batch, groups, q_len, 1]");
  }
  return selection;
}

void scores_of_indexer(nb::handle q, nb::handle k, nb::handle w, nb::handle k_scale,
                       nb::handle visible, nb::handle scores, nb::handle backend,
                       nb::handle threads, nb::handle stream) {
  const Indexer indexer(q, k, w, k_scale);
  const TensorView scores_view = tensor_from(scores, "scores");
  SelectOptions options = options_from(nb::int_(0), visible, nb::none(), backend, threads, stream);
  TorchWorkspace workspace(indexer.q());
  options.allocate = workspace.allocator();
  const nb::gil_scoped_release release;
  index_scores(indexer, scores_view, options);
}

void best_of_scores(nb::handle scores, nb::handle indices, nb::handle counts, nb::handle k,
                    nb::handle visible, nb::handle always, nb::handle backend, nb::handle threads,
                    nb::handle stream) {
  const Input scores_view(scores, "scores");
  const Selection selection = selection_from(indices, counts);
  SelectOptions options = options_from(k, visible, always, backend, threads, stream);
  TorchWorkspace workspace(scores_view);
  options.allocate = workspace.allocator();
  const nb::gil_scoped_release release;
  top_k(scores_view, selection, options);
}

void best_of_indexer(nb::handle q, nb::handle k, nb::handle w, nb::handle k_scale,
                     nb::handle indices, nb::handle counts, nb::handle top_k, nb::handle visible,
                     nb::handle always, nb::handle backend, nb::handle threads, nb::handle stream) {
  const Indexer indexer(q, k, w, k_scale);
  const Selection selection = selection_from(indices, counts);
  SelectOptions options = options_from(top_k, visible, always, backend, threads, stream);
  TorchWorkspace workspace(indexer.q());
  options.allocate = workspace.allocator();
  const nb::gil_scoped_release release;
  select_keys(indexer, selection, options);
}

std::string kernel_for(nb::handle q, nb::handle k, nb::handle w, nb::handle k_scale,
                       nb::handle top_k, nb::handle visible, nb::handle always,
                       nb::handle backend) {
  const Indexer indexer(q, k, w, k_scale);
  return kernel_for_selection(
      indexer, options_from(top_k, visible, always, backend, nb::int_(0), nb::int_(0)));
}

// What both passes of the loss take, in the order of their arguments.
struct LossArguments {
  nb::handle index_q, index_k, w, k_scale, q, k, lse, lists, keys_per_entry, rows, scale, softcap,
      deterministic, backend, threads, stream;
};

class Loss {
 public:
  explicit Loss(const LossArguments& given)
      : indexer_(given.index_q, given.index_k, given.w, given.k_scale),
        q_(given.q, "q"),
        k_(given.k, "k"),
        lse_(given.lse, "lse"),
        lists_(lists_from(given.lists, q_)),
        keys_per_entry_(integer_from(given.keys_per_entry, "keys_per_entry")),
        workspace_(indexer_.q()) {
    if (!given.scale.is_none()) scale_ = number_from(given.scale, "scale");
    softcap_ = number_from(given.softcap, "softcap");
    if (!given.rows.is_none()) options_.rows = indices_from(given.rows, "rows", 4, "[1, 1, 1, n]");
    options_.deterministic = nb::cast<bool>(given.deterministic);
    set_backend(options_.backend, given.backend);
    options_.threads = threads_from(given.threads);
    options_.stream = stream_from(given.stream);
    options_.allocate = workspace_.allocator();
  }
  IndexerView indexer() const { return indexer_; }
  AttentionTarget target() const {
    return {.q = q_,
            .k = k_,
            .lse = lse_,
            .scale = scale_,
            .softcap = softcap_,
            .keys_per_entry = keys_per_entry_};
  }
  const Lists& lists() const { return lists_; }
  const IndexLossOptions& options() const { return options_; }

 private:
  Indexer indexer_;
  Input q_, k_, lse_;
  Lists lists_;
  int64_t keys_per_entry_;
  std::optional<double> scale_;
  double softcap_ = 0;
  mutable TorchWorkspace workspace_;  // filled while a call reads the rest
  IndexLossOptions options_;
};

void loss_forward(nb::handle index_q, nb::handle index_k, nb::handle w, nb::handle k_scale,
                  nb::handle q, nb::handle k, nb::handle lse, nb::handle lists,
                  nb::handle keys_per_entry, nb::handle loss, nb::handle stats, nb::handle rows,
                  nb::handle scale, nb::handle softcap, nb::handle deterministic,
                  nb::handle backend, nb::handle threads, nb::handle stream) {
  const Loss call({index_q, index_k, w, k_scale, q, k, lse, lists, keys_per_entry, rows, scale,
                   softcap, deterministic, backend, threads, stream});
  const TensorView loss_view = tensor_from(loss, "loss"), stats_view = tensor_from(stats, "stats");
  const nb::gil_scoped_release release;
  index_loss_forward(call.indexer(), call.target(), call.lists(), loss_view, stats_view,
                     call.options());
}

void loss_backward(nb::handle dloss, nb::handle index_q, nb::handle index_k, nb::handle w,
                   nb::handle k_scale, nb::handle q, nb::handle k, nb::handle lse, nb::handle lists,
                   nb::handle keys_per_entry, nb::handle stats, nb::handle dq, nb::handle dk,
                   nb::handle dw, nb::handle rows, nb::handle scale, nb::handle softcap,
                   nb::handle deterministic, nb::handle backend, nb::handle threads,
                   nb::handle stream) {
  const Loss call({index_q, index_k, w, k_scale, q, k, lse, lists, keys_per_entry, rows, scale,
                   softcap, deterministic, backend, threads, stream});
  const Input dloss_view(dloss, "dloss"), stats_view(stats, "stats");
  const IndexGradients gradients{.dq = tensor_from(dq, "dq"),
                                 .dk = tensor_from(dk, "dk"),
                                 .dw = optional_tensor_from(dw, "dw")};
  const nb::gil_scoped_release release;
  index_loss_backward(dloss_view, call.indexer(), call.target(), call.lists(), stats_view,
                      gradients, call.options());
}

}  // namespace

void add_selection(nb::module_& module) {
  using namespace nb::literals;
  module.def("index_scores", &scores_of_indexer, "q"_a, "k"_a, "w"_a.none(), "k_scale"_a.none(),
             "visible"_a.none(), "scores"_a, "backend"_a.none(), "threads"_a, "stream"_a);
  module.def("top_k", &best_of_scores, "scores"_a, "indices"_a, "counts"_a.none(), "k"_a.none(),
             "visible"_a.none(), "always"_a.none(), "backend"_a.none(), "threads"_a, "stream"_a);
  module.def("select_keys", &best_of_indexer, "q"_a, "k"_a, "w"_a.none(), "k_scale"_a.none(),
             "indices"_a, "counts"_a.none(), "top_k"_a.none(), "visible"_a.none(),
             "always"_a.none(), "backend"_a.none(), "threads"_a, "stream"_a);
  module.def("kernel_for_selection", &kernel_for, "q"_a, "k"_a, "w"_a.none(), "k_scale"_a.none(),
             "top_k"_a, "visible"_a.none(), "always"_a.none(), "backend"_a.none(),
             "The kernels that select_keys() would run.");
  module.def("index_loss_forward", &loss_forward, "index_q"_a, "index_k"_a, "w"_a.none(),
             "k_scale"_a.none(), "q"_a, "k"_a, "lse"_a, "lists"_a, "keys_per_entry"_a.none(),
             "loss"_a, "stats"_a, "rows"_a.none(), "scale"_a.none(), "softcap"_a.none(),
             "deterministic"_a, "backend"_a.none(), "threads"_a, "stream"_a);
  module.def("index_loss_backward", &loss_backward, "dloss"_a, "index_q"_a, "index_k"_a,
             "w"_a.none(), "k_scale"_a.none(), "q"_a, "k"_a, "lse"_a, "lists"_a,
             "keys_per_entry"_a.none(), "stats"_a, "dq"_a, "dk"_a, "dw"_a.none(), "rows"_a.none(),
             "scale"_a.none(), "softcap"_a.none(), "deterministic"_a, "backend"_a.none(),
             "threads"_a, "stream"_a);
}

}  // namespace keyhole::python
