// python/bindings/plain_call.cpp
// The fast path from keyhole.attention to a kernel, for plain calls: torch tensors with a plan or a
// pattern, in eager mode and without a gradient. One function makes all checks, allocates the
// result and runs. The same checks in Python take longer than launching the kernel. Any other call
// gets None, and the package takes the general path (keyhole/torch_attention/call.py), which also
// has the error messages.
#include <nanobind/nanobind.h>

#include <optional>
#include <vector>

#include "convert.h"
#include "module.h"
#include "options.h"
#include "torch_memory.h"
#include "torch_tensor.h"

namespace keyhole::python {
namespace {

// Objects of torch and of the package, from know_plain_calls(). They live as long as the
// interpreter.
struct Known {
  std::vector<nb::handle> tensor_classes;  // torch.Tensor and Parameter, without other subclasses
  nb::handle plan_class, pattern_class;
  std::vector<nb::handle> questions;
  nb::handle forward_ad;  // torch's module of that name
  nb::handle is_grad_enabled, plan_for, empty_out, num_threads;
  nb::handle current_stream;  // None in a torch without CUDA
};
const Known* known = nullptr;

// Allocating an object may trigger Python's garbage collector, which may run any Python code. Since
// 3.12 it runs only between Python instructions.
constexpr bool kCollectsAnywhere = PY_VERSION_HEX < 0x030c0000;

struct Names {
  PyObject* core = PyUnicode_InternFromString("core");
  PyObject* current_level = PyUnicode_InternFromString("_current_level");
  PyObject* is_meta = PyUnicode_InternFromString("is_meta");
  PyObject* requires_grad = PyUnicode_InternFromString("requires_grad");
};
const Names& names() {
  static const Names kept;
  return kept;
}

// None, False and 0 are no.
bool is_yes(const nb::object& answer) {
  const int truth = PyObject_IsTrue(answer.ptr());
  if (truth < 0) throw nb::python_error();
  return truth != 0;
}
bool ask(nb::handle question) { return is_yes(owned(PyObject_CallNoArgs(question.ptr()))); }
bool has(nb::handle tensor, PyObject* attribute) {
  return is_yes(owned(PyObject_GetAttr(tensor.ptr(), attribute)));
}
bool requires_grad(nb::handle tensor) { return has(tensor, names().requires_grad); }

bool is_plain_tensor(nb::handle object) {
  for (const nb::handle type : known->tensor_classes) {
    if (type.is(object.type())) return true;
  }
  return false;
}

bool is_plan_or_pattern(nb::handle object) {
  return object.type().is(known->plan_class) || object.type().is(known->pattern_class) ||
         PyUnicode_CheckExact(object.ptr());
}

// Numbers that can be read without calling one of their methods.
bool is_plain_number(nb::handle object) {
  return PyFloat_Check(object.ptr()) || PyLong_CheckExact(object.ptr());
}
bool are_plain_options(nb::handle scale, nb::handle softcap, nb::handle backend) {
  return (scale.is_none() || is_plain_number(scale)) && is_plain_number(softcap) &&
         PyUnicode_CheckExact(backend.ptr());
}

struct Tensors {
  nb::handle q, k, v;
};
struct Views {
  TensorView q, k, v;
};
std::optional<Views> plain_views_of(const Tensors& tensors) {
  const auto q = plain_tensor_from(tensors.q), k = plain_tensor_from(tensors.k),
             v = plain_tensor_from(tensors.v);
  if (!q || !k || !v) return {};
  return Views{*q, *k, *v};
}

// The compiled plan of a keyhole.Plan, or of a pattern through the package's cache. For a pattern,
// None if a tensor is not plain: errors about tensors come before errors about the pattern.
nb::object core_of(nb::handle plan_or_pattern, const Tensors& tensors) {
  nb::object plan = nb::borrow(plan_or_pattern);
  if (!plan.type().is(known->plan_class)) {
    const auto views = plain_views_of(tensors);
    if (!views) return nb::none();
    const int64_t* const q = views->q.shape;
    plan = known->plan_for(plan_or_pattern, q[2], views->k.shape[2], q[0], q[1]);
  }
  return owned(PyObject_GetAttr(plan.ptr(), names().core));
}

// The level of torch.autograd.forward_ad is -1 outside forward mode. It is read as an attribute,
// because torch has only a Python function for it, which would be slower.
bool is_in_forward_mode() {
  const nb::object level = owned(PyObject_GetAttr(known->forward_ad.ptr(), names().current_level));
  return nb::cast<int64_t>(level) >= 0;
}

// Whether a dispatch mode, autocast, a transform, a tracer or forward mode is active.
bool is_observed() {
  for (const nb::handle question : known->questions) {
    if (ask(question)) return true;
  }
  return is_in_forward_mode();
}

bool is_contiguous(const TensorView& view) {
  int64_t step = 1;
  for (int d = view.rank - 1; d >= 0; --d) {
    if (view.shape[d] > 1 && view.strides[d] != step) return false;
    step *= view.shape[d];
  }
  return true;
}

struct Result {
  nb::object tensor;
  TensorView view;
};
// The result for a contiguous q with the head_dim of v, allocated without running Python code.
// Nothing for another q, or where torch cannot do that.
std::optional<Result> empty_like(const TensorView& q, const TensorView& v) {
  if (q.shape[3] != v.shape[3] || !is_contiguous(q)) return {};
  nb::object out = empty_tensor(q.device, q.shape, q.strides, torch_dtype(q.dtype));
  if (!out.is_valid()) return {};
  const TensorView view = torch_tensor_from(out, "out");
  return Result{std::move(out), view};
}
// Any other result, allocated by torch's public functions.
Result empty_out(nb::handle q, nb::handle v) {
  PyObject* const both[] = {q.ptr(), v.ptr()};
  nb::object out = owned(PyObject_Vectorcall(known->empty_out.ptr(), both, 2, nullptr));
  const TensorView view = torch_tensor_from(out, "out");
  return {std::move(out), view};
}

void set_place(AttentionOptions& options, const Device& device) {
  if (device.kind == Device::Kind::cpu) {
    options.threads = threads_from(owned(PyObject_CallNoArgs(known->num_threads.ptr())));
    return;
  }
  const nb::object ordinal = owned(PyLong_FromLong(device.ordinal));
  PyObject* const one[] = {ordinal.ptr()};
  options.stream =
      stream_from(owned(PyObject_Vectorcall(known->current_stream.ptr(), one, 1, nullptr)));
}

nb::object forward_if_plain(nb::handle q, nb::handle k, nb::handle v, nb::handle plan,
                            nb::handle scale, nb::handle softcap, nb::handle backend) {
  const bool is_plain = known != nullptr && has_exchange_table() && is_plan_or_pattern(plan) &&
                        is_plain_tensor(q) && is_plain_tensor(k) && is_plain_tensor(v) &&
                        are_plain_options(scale, softcap, backend);
  if (!is_plain || is_observed()) return nb::none();
  if (ask(known->is_grad_enabled) && (requires_grad(q) || requires_grad(k) || requires_grad(v))) {
    return nb::none();
  }
  // For a meta tensor, reading through DLPack raises an exception, which takes torch milliseconds.
  if (has(q, names().is_meta)) return nb::none();
  const Tensors tensors{q, k, v};
  const nb::object core = core_of(plan, tensors);
  if (core.is_none()) return nb::none();
  const Plan& compiled = nb::cast<const Plan&>(core);

  auto views = plain_views_of(tensors);
  if (!views) return nb::none();
  auto out = empty_like(views->q, views->v);
  // Read the tensors again after anything that may run Python code: it, or another thread, may have
  // changed them.
  if (!out || kCollectsAnywhere) {
    if (!out) out = empty_out(q, v);
    views = plain_views_of(tensors);
    if (!views) return nb::none();
  }
  AttentionOptions options = options_from(scale, softcap, backend);
  set_place(options, views->q.device);  // calls only C++ functions of torch
  TorchWorkspace workspace(views->q);
  options.allocate = workspace.allocator();
  {
    const nb::gil_scoped_release release;
    attention_forward(views->q, views->k, views->v, compiled, out->view, {}, options);
  }
  return std::move(out->tensor);
}

std::vector<nb::handle> kept(nb::handle objects) {
  std::vector<nb::handle> all;
  for (const nb::handle object : nb::cast<nb::tuple>(objects)) all.push_back(object.inc_ref());
  return all;
}

void know_plain_calls(nb::handle tensors, nb::handle plans, nb::handle patterns,
                      nb::handle questions, nb::handle forward_ad, nb::handle is_grad_enabled,
                      nb::handle plan_for, nb::handle empty_out, nb::handle num_threads,
                      nb::handle current_stream) {
  known = new Known{.tensor_classes = kept(tensors),
                    .plan_class = plans.inc_ref(),
                    .pattern_class = patterns.inc_ref(),
                    .questions = kept(questions),
                    .forward_ad = forward_ad.inc_ref(),
                    .is_grad_enabled = is_grad_enabled.inc_ref(),
                    .plan_for = plan_for.inc_ref(),
                    .empty_out = empty_out.inc_ref(),
                    .num_threads = num_threads.inc_ref(),
                    .current_stream = current_stream.inc_ref()};
}

}  // namespace

void add_plain_call(nb::module_& module) {
  using namespace nb::literals;
  module.def(
      "know_plain_calls", &know_plain_calls, "tensors"_a, "plans"_a, "patterns"_a, "questions"_a,
      "forward_ad"_a, "is_grad_enabled"_a, "plan_for"_a, "empty_out"_a, "num_threads"_a,
      "current_stream"_a.none(),
      "What forward_if_plain() needs from torch and the package. A call is plain if the tensors "
      "have a class of `tensors`, all `questions` return None, False or 0, and the level of "
      "`forward_ad` is -1.");
  module.def("forward_if_plain", &forward_if_plain, "q"_a.none(), "k"_a.none(), "v"_a.none(),
             "plan"_a.none(), "scale"_a.none(), "softcap"_a.none(), "backend"_a.none(),
             "The result for plain tensors and a keyhole.Plan, a keyhole.Pattern or its text. None "
             "if anything else was passed, or if the call must go through torch's dispatcher.");
}

}  // namespace keyhole::python
