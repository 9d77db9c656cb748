// python/bindings/convert.cpp
// Uses Python's C API on the path of every call, where speed counts, and nanobind elsewhere.
#include "convert.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/int_math.h"
#include "torch_tensor.h"

namespace keyhole::python {
namespace {

void check_tuple(nb::handle object, const char* name, const char* expected) {
  if (!PyTuple_Check(object.ptr())) raise_type_error(name, expected, object);
}

nb::handle item(nb::handle tuple, Py_ssize_t index) { return PyTuple_GetItem(tuple.ptr(), index); }

// A list argument. Recipes keep arrays as bytes, which are immutable.
std::vector<int64_t> list_from(const CatalogEntry& entry, const Parameter& parameter,
                               nb::handle argument) {
  if (!PyBytes_Check(argument.ptr())) {
    raise_type_error(say(entry.name, ": ", parameter.name).c_str(), "bytes of int64", argument);
  }
  const auto size = size_t(PyBytes_Size(argument.ptr()));
  KEYHOLE_CHECK(size % sizeof(int64_t) == 0, entry.name, ": ", parameter.name, " has ", size,
                " bytes; expected a multiple of ", sizeof(int64_t));
  std::vector<int64_t> list(size / sizeof(int64_t));
  if (size > 0) std::memcpy(list.data(), PyBytes_AsString(argument.ptr()), size);
  return list;
}

MaskRows rows_from(const CatalogEntry& entry, nb::handle argument) {
  const char* expected = "(bits, q_len, k_len)";
  check_tuple(argument, "mask: rows", expected);
  if (PyTuple_Size(argument.ptr()) != 3 || !PyBytes_Check(item(argument, 0).ptr())) {
    raise_type_error("mask: rows", expected, argument);
  }
  MaskRows rows;
  rows.q_len = integer_from(item(argument, 1), "mask: q_len");
  rows.k_len = integer_from(item(argument, 2), "mask: k_len");
  KEYHOLE_CHECK(rows.q_len >= 0 && rows.k_len >= 0, entry.name, ": a matrix of ", rows.q_len, " x ",
                rows.k_len);
  const int64_t pairs = checked_mul(rows.q_len, rows.k_len, "mask: pairs");
  const int64_t bytes = PyBytes_Size(item(argument, 0).ptr());
  KEYHOLE_CHECK(bytes == ceil_div(pairs, 8), entry.name, ": ", bytes, " bytes for ", rows.q_len,
                " x ", rows.k_len, " pairs; expected ", ceil_div(pairs, 8));
  const auto* bits = reinterpret_cast<const uint8_t*>(PyBytes_AsString(item(argument, 0).ptr()));
  rows.allowed.resize(size_t(pairs));
  for (int64_t i = 0; i < pairs; ++i) rows.allowed[size_t(i)] = bits[i / 8] >> (i % 8) & 1;
  return rows;
}

int64_t integer_or_inf(const CatalogEntry& entry, const Parameter& parameter, nb::handle argument) {
  const std::string name = say(entry.name, ": ", parameter.name);
  if (parameter.may_be_unbounded && PyFloat_Check(argument.ptr()) &&
      std::isinf(PyFloat_AsDouble(argument.ptr())) && PyFloat_AsDouble(argument.ptr()) > 0) {
    return kUnbounded;
  }
  if (!PyIndex_Check(argument.ptr()) || PyBool_Check(argument.ptr())) {
    raise_type_error(name.c_str(), parameter.may_be_unbounded ? "an int or float('inf')" : "an int",
                     argument);
  }
  const int64_t number = integer_from(argument, name.c_str());
  return parameter.may_be_unbounded && number > parameter.most ? kUnbounded : number;
}

Pattern pattern_from(const CatalogEntry& entry, const Parameter& parameter, nb::handle argument) {
  if (!nb::isinstance<Pattern>(argument)) {
    raise_type_error(say(entry.name, ": ", parameter.name).c_str(), "a pattern", argument);
  }
  return nb::cast<Pattern>(argument);
}

Value value_from(const CatalogEntry& entry, const Parameter& parameter, nb::handle argument) {
  if (argument.is_none() && parameter.is_optional) return std::monostate{};
  switch (parameter.kind) {
    case ParameterKind::integer:
      return integer_or_inf(entry, parameter, argument);
    case ParameterKind::integers:
    case ParameterKind::array:
      return list_from(entry, parameter, argument);
    case ParameterKind::rows:
      return rows_from(entry, argument);
    case ParameterKind::pattern:
      return pattern_from(entry, parameter, argument);
    case ParameterKind::patterns: {
      check_tuple(argument, say(entry.name, ": ", parameter.name).c_str(), "a tuple of patterns");
      std::vector<Pattern> patterns;
      for (nb::handle pattern : nb::borrow<nb::tuple>(argument)) {
        patterns.push_back(pattern_from(entry, parameter, pattern));
      }
      return patterns;
    }
  }
  return std::monostate{};
}

nb::object name_of_type(nb::handle object) { return object.type().attr("__name__"); }

}  // namespace

// Bindings use the limited API of Python, so that one extension serves all versions from 3.12 on:
// no macros that access object internals (PyTuple_GET_ITEM), no fields of types (tp_name).
nb::object owned(PyObject* object) {
  if (object == nullptr) throw nb::python_error();
  return nb::steal(object);
}

void raise_type_error(const char* name, const char* expected, nb::handle found) {
  PyErr_Format(PyExc_TypeError, "%s: expected %s, found %U", name, expected,
               name_of_type(found).ptr());
  throw nb::python_error();
}

int64_t integer_from(nb::handle number, const char* name) {
  if (!PyLong_CheckExact(number.ptr())) {
    if (PyBool_Check(number.ptr()) || !PyIndex_Check(number.ptr())) {
      raise_type_error(name, "an int", number);
    }
    const nb::object index = nb::steal(PyNumber_Index(number.ptr()));
    if (!index.is_valid()) throw nb::python_error();
    return integer_from(nb::cast<nb::int_>(index), name);
  }
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  KEYHOLE_CHECK(overflow == 0, name, ": the number does not fit into 64 bits");
  return value;
}

std::optional<int64_t> optional_integer_from(nb::handle number, const char* name) {
  if (number.is_none()) return {};
  return integer_from(number, name);
}

double number_from(nb::handle number, const char* name) {
  if (PyFloat_Check(number.ptr())) return PyFloat_AsDouble(number.ptr());
  const double value = PyFloat_AsDouble(number.ptr());
  if (value == -1.0 && PyErr_Occurred()) {
    const bool is_too_large = PyErr_ExceptionMatches(PyExc_OverflowError);
    PyErr_Clear();
    if (is_too_large) {
      PyErr_Format(PyExc_ValueError, "%s: the %U is too large for a float", name,
                   name_of_type(number).ptr());
      throw nb::python_error();
    }
    raise_type_error(name, "a number", number);
  }
  return value;
}

void* pointer_from(nb::handle number, const char* name) {
  if (!PyLong_CheckExact(number.ptr())) {
    raise_type_error(name, "an int as the pointer of a tensor", number);
  }
  void* pointer = PyLong_AsVoidPtr(number.ptr());
  if (pointer == nullptr && PyErr_Occurred()) throw nb::python_error();
  return pointer;
}

TensorView tensor_of(void* data, DType dtype, nb::handle shape, nb::handle strides, int64_t device,
                     const char* name) {
  check_tuple(shape, name, "its shape as a tuple of ints");
  check_tuple(strides, name, "its strides as a tuple of ints");
  TensorView tensor;
  tensor.data = data;
  tensor.dtype = dtype;
  const Py_ssize_t rank = PyTuple_Size(shape.ptr());
  KEYHOLE_CHECK(rank >= 1 && rank <= TensorView::kMaxRank, name, " has ", rank,
                " dimensions; accepted are 1 to ", TensorView::kMaxRank);
  KEYHOLE_CHECK(PyTuple_Size(strides.ptr()) == rank, name, " has ", rank, " dimensions and ",
                PyTuple_Size(strides.ptr()), " strides");
  tensor.rank = int(rank);
  for (Py_ssize_t d = 0; d < rank; ++d) {
    tensor.shape[d] = integer_from(item(shape, d), name);
    tensor.strides[d] = integer_from(item(strides, d), name);
  }
  KEYHOLE_CHECK(device >= -1 && device <= std::numeric_limits<int32_t>::max(), name, ": device ",
                device, "; accepted are -1 (host memory) and the ordinals of GPUs");
  if (device >= 0) tensor.device = {Device::Kind::cuda, int32_t(device)};
  return tensor;
}

TensorView tensor_from(nb::handle tensor, const char* name, DType last) {
  constexpr const char* kExpected = "a tuple (pointer, dtype, shape, strides, device)";
  if (is_torch_tensor(tensor)) return torch_tensor_from(tensor, name);
  check_tuple(tensor, name, kExpected);
  if (PyTuple_Size(tensor.ptr()) != 5) raise_type_error(name, kExpected, tensor);
  const int64_t dtype = integer_from(item(tensor, 1), name);
  KEYHOLE_CHECK(dtype >= 0 && dtype <= int64_t(last), name, ": dtype ", dtype,
                "; accepted are 0 (f16), 1 (bf16), 2 (f32) and 3 (f64)",
                last == DType::e4m3 ? ", and 4 (e4m3)" : "");
  void* const data = pointer_from(item(tensor, 0), name);
  const int64_t device = integer_from(item(tensor, 4), name);
  return tensor_of(data, DType(dtype), item(tensor, 2), item(tensor, 3), device, name);
}

Input::Input(nb::handle tensor, const char* name, DType last)
    : view_(tensor_from(tensor, name, last)) {
  if (!is_torch_tensor(tensor)) return;
  const int rows = view_.rank - 1;
  if (view_.num_elements() == 0) {  // nothing is read, and contiguous() would keep the strides
    view_.strides[rows] = 1;
    return;
  }
  if (view_.shape[rows] > 1 && view_.strides[rows] != 1) {
    copy_ = contiguous_copy(tensor);  // also resolves the negative bit
  } else if (is_negated(tensor)) {
    copy_ = copy_with_signs(tensor);
  } else {
    return;
  }
  view_ = tensor_from(copy_, name);
}

TensorView optional_tensor_from(nb::handle tensor, const char* name) {
  return tensor.is_none() ? TensorView{} : tensor_from(tensor, name);
}

std::vector<Value> values_from(const CatalogEntry& entry, nb::handle arguments) {
  check_tuple(arguments, "make", "the arguments as a tuple");
  const auto count = size_t(PyTuple_Size(arguments.ptr()));
  KEYHOLE_CHECK(count == entry.parameters.size(), entry.name, ": ", count, " arguments; expected ",
                entry.parameters.size(), ": ", signature_of(entry));
  std::vector<Value> values;
  for (size_t i = 0; i < count; ++i) {
    values.push_back(value_from(entry, entry.parameters[i], item(arguments, Py_ssize_t(i))));
  }
  return values;
}

}  // namespace keyhole::python
