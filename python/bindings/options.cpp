// python/bindings/options.cpp
#include "options.h"

#include <algorithm>

#include "convert.h"

namespace keyhole::python {

AttentionOptions options_from(nb::handle scale, nb::handle softcap, nb::handle backend) {
  AttentionOptions options;
  if (!scale.is_none()) options.scale = number_from(scale, "scale");
  options.softcap = number_from(softcap, "softcap");
  set_backend(options.backend, backend);
  return options;
}

void set_backend(std::string& backend, nb::handle name) {
  if (!PyUnicode_Check(name.ptr())) raise_type_error("backend", "a str", name);
  if (PyUnicode_CompareWithASCIIString(name.ptr(), "auto") != 0) {
    const char* text = PyUnicode_AsUTF8AndSize(name.ptr(), nullptr);
    if (text == nullptr) {  // a lone surrogate: no backend has such a name
      PyErr_Clear();
      text = "?";
    }
    backend = text;
  }
}

Normalizer normalizer_from(nb::handle alpha, nb::handle top_k) {
  const double number = number_from(alpha, "alpha");
  return {.alpha = number, .top_k = integer_from(top_k, "top_k")};
}

void* stream_from(nb::handle stream) {
  if (!PyLong_CheckExact(stream.ptr())) raise_type_error("stream", "an int", stream);
  void* pointer = PyLong_AsVoidPtr(stream.ptr());
  if (pointer == nullptr && PyErr_Occurred()) throw nb::python_error();
  return pointer;
}

int threads_from(nb::handle threads) {
  return int(std::clamp<int64_t>(integer_from(threads, "threads"), 0, 1 << 16));
}

}  // namespace keyhole::python
