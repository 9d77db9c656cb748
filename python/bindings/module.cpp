// python/bindings/module.cpp
// keyhole._core: thin bindings of the C++ library. The user-facing API is in python/keyhole/.
#include "module.h"

#include "keyhole/error.h"
#include "keyhole/version.h"

namespace keyhole::python {

static PyObject* exception_for(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage:
      return PyExc_ValueError;
    case ErrorKind::unsupported:
      return PyExc_NotImplementedError;
    case ErrorKind::device:
    case ErrorKind::internal:
      return PyExc_RuntimeError;
  }
  return PyExc_RuntimeError;
}

static void translate_error(const std::exception_ptr& pointer, void* /*payload*/) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& error) {
    PyErr_SetString(exception_for(error.kind()), error.what());
  }
}

}  // namespace keyhole::python

NB_MODULE(_core, module) {
  module.doc() = "The C++ library of Keyhole; use the package keyhole instead.";
  // A plan that is still referenced when the program ends is no leak worth a warning.
  nanobind::set_leak_warnings(false);
  nanobind::register_exception_translator(keyhole::python::translate_error);
  module.def("version", &keyhole::version, "The version of the C++ library.");
  keyhole::python::add_patterns(module);
  keyhole::python::add_plans(module);
  keyhole::python::add_tile_lists(module);
  keyhole::python::add_ops(module);
  keyhole::python::add_selection(module);
  keyhole::python::add_selection_cost(module);
  keyhole::python::add_torch_tensors(module);
  keyhole::python::add_torch_memory(module);
  keyhole::python::add_plain_call(module);
  keyhole::python::add_pictures(module);
  keyhole::python::add_command_line(module);
}
