// python/bindings/convert.h
// From Python objects to the library's types. A wrong type is a TypeError that names the argument
// and the type that was found. What the library checks itself (shapes that do not fit) is not
// checked here.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>

#include "keyhole/attention.h"
#include "pattern/catalog.h"

namespace keyhole::python {

namespace nb = nanobind;

// Takes ownership of a new reference from Python's C API. Null means that the function has raised.
nb::object owned(PyObject* object);

// "q: a tuple was expected, found str"
[[noreturn]] void raise_type_error(const char* name, const char* expected, nb::handle found);

// (pointer, dtype, shape, strides, device): dtype is DType as an int, strides count elements,
// device is -1 for host memory or the ordinal of a GPU. Or a torch.Tensor (torch_tensor.h). The
// memory must live as long as the view. `last` is the last DType that is accepted: attention takes
// those up to f64, indexers take e4m3 as well.
TensorView tensor_from(nb::handle tensor, const char* name, DType last = DType::f64);
// The same, or None: not given.
TensorView optional_tensor_from(nb::handle tensor, const char* name);
// A tensor that is only read. Kernels need rows (the last dimension) to be contiguous, and accept
// any other stride. A torch.Tensor with other rows, or with torch's negative bit set, is copied;
// the copy lives as long as this object.
class Input {
 public:
  Input() = default;  // not given
  Input(nb::handle tensor, const char* name, DType last = DType::f64);
  operator const TensorView&() const { return view_; }

 private:
  nb::object copy_;
  TensorView view_;
};

// From its parts; shape and strides are tuples of ints.
TensorView tensor_of(void* data, DType dtype, nb::handle shape, nb::handle strides, int64_t device,
                     const char* name);
void* pointer_from(nb::handle number, const char* name);

// Any int; a bool is refused, because True as a length is a mistake.
int64_t integer_from(nb::handle number, const char* name);
std::optional<int64_t> optional_integer_from(nb::handle number, const char* name);
// Any real number.
double number_from(nb::handle number, const char* name);

// The arguments of one catalog entry. An integer is an int, or float("inf") where the entry takes
// inf; a list is bytes of int64; rows are (bits, q_len, k_len), eight pairs per byte, lowest bit
// first; a pattern is a _core.Pattern.
std::vector<Value> values_from(const CatalogEntry& entry, nb::handle arguments);

}  // namespace keyhole::python
