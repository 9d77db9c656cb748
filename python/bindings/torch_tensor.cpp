// python/bindings/torch_tensor.cpp
#include "torch_tensor.h"

#include <nanobind/ndarray.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "convert.h"
#include "module.h"

namespace keyhole::python {
namespace {

// DLPack's table of C functions, which torch (2.10 and newer) has under
// `__dlpack_c_exchange_api__`. One of them is used here: from_object fills in a dltensor that
// points into the tensor.
struct ExchangeTable {
  uint32_t major = 0, minor = 0;
  const ExchangeTable* older = nullptr;
  void* allocate = nullptr;
  void* owning_from_object = nullptr;
  void* object_from_owning = nullptr;
  int (*from_object)(void* object, nb::dlpack::dltensor* tensor) = nullptr;
  void* current_stream = nullptr;
};
constexpr uint32_t kExchangeVersion = 1;
constexpr int32_t kCpu = 1, kCuda = 2;  // device types of DLPack

// Set when the package imports torch, and never released: they live as long as the interpreter.
PyTypeObject* tensor_class = nullptr;
std::array<PyObject*, 4> dtypes = {};  // torch's, in the order of DType
const ExchangeTable* exchange_table = nullptr;

const ExchangeTable* table_from(nb::handle capsule) {
  if (capsule.is_none()) return nullptr;
  const void* pointer = PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api");
  if (pointer == nullptr) throw nb::python_error();
  const auto* table = static_cast<const ExchangeTable*>(pointer);
  while (table != nullptr && table->major > kExchangeVersion) table = table->older;
  return table != nullptr && table->major == kExchangeVersion ? table : nullptr;
}

void know_torch(nb::handle tensors, nb::handle four_dtypes, nb::handle exchange) {
  if (!PyType_Check(tensors.ptr())) raise_type_error("tensors", "torch.Tensor", tensors);
  const auto given = nb::cast<nb::tuple>(four_dtypes);
  KEYHOLE_CHECK(given.size() == dtypes.size(), "know_torch: ", given.size(),
                " dtypes; expected those of f16, bf16, f32 and f64");
  exchange_table = table_from(exchange);
  for (size_t i = 0; i < dtypes.size(); ++i) dtypes[i] = nb::object(given[i]).release().ptr();
  tensor_class = reinterpret_cast<PyTypeObject*>(tensors.inc_ref().ptr());
}

// Interned names, so that a lookup compares pointers.
struct Names {
  PyObject* data_ptr = PyUnicode_InternFromString("data_ptr");
  PyObject* dtype = PyUnicode_InternFromString("dtype");
  PyObject* shape = PyUnicode_InternFromString("shape");
  PyObject* stride = PyUnicode_InternFromString("stride");
  PyObject* get_device = PyUnicode_InternFromString("get_device");
  PyObject* contiguous = PyUnicode_InternFromString("contiguous");
  PyObject* is_neg = PyUnicode_InternFromString("is_neg");
  PyObject* resolve_neg = PyUnicode_InternFromString("resolve_neg");
};
const Names& names() {
  static const Names kept;
  return kept;
}

nb::object call(nb::handle tensor, PyObject* method) {
  PyObject* const self[] = {tensor.ptr()};
  return owned(PyObject_VectorcallMethod(method, self, 1, nullptr));
}
nb::object attribute(nb::handle tensor, PyObject* name) {
  return owned(PyObject_GetAttr(tensor.ptr(), name));
}

[[noreturn]] void refuse_dtype(nb::handle tensor, const char* name) {
  const nb::object dtype = attribute(tensor, names().dtype);
  PyErr_Format(
      PyExc_TypeError,
      "attention: %s is %S; accepted are float16, bfloat16, float32 and, on the CPU, float64", name,
      dtype.ptr());
  throw nb::python_error();
}

std::optional<DType> dtype_from(nb::dlpack::dtype dtype) {
  using Code = nb::dlpack::dtype_code;
  const bool is_float = dtype.code == uint8_t(Code::Float),
             is_bf16 = dtype.code == uint8_t(Code::Bfloat);
  if (is_float && dtype.bits == 32) return DType::f32;
  if (is_bf16 && dtype.bits == 16) return DType::bf16;
  if (is_float && dtype.bits == 16) return DType::f16;
  if (is_float && dtype.bits == 64) return DType::f64;
  return {};
}

// False if torch cannot describe the tensor; a Python exception is set then.
bool describe(nb::handle tensor, nb::dlpack::dltensor& source) {
  return exchange_table->from_object(tensor.ptr(), &source) == 0;
}

// For 1 to 4 dimensions. The tensor is on a CUDA GPU or on the CPU.
TensorView view_of(const nb::dlpack::dltensor& source, DType dtype) {
  TensorView view;
  view.dtype = dtype;
  view.data = static_cast<char*>(source.data) + source.byte_offset;
  view.rank = source.ndim;
  std::copy_n(source.shape, source.ndim, view.shape);
  std::copy_n(source.strides, source.ndim, view.strides);
  if (source.device.device_type == kCuda) {
    view.device = {Device::Kind::cuda, source.device.device_id};
  }
  return view;
}

TensorView from_exchange(nb::handle tensor, const char* name) {
  nb::dlpack::dltensor source;
  if (!describe(tensor, source)) throw nb::python_error();
  KEYHOLE_CHECK(source.ndim >= 1 && source.ndim <= TensorView::kMaxRank, name, " has ", source.ndim,
                " dimensions; accepted are 1 to ", TensorView::kMaxRank);
  const std::optional<DType> dtype = dtype_from(source.dtype);
  if (!dtype) refuse_dtype(tensor, name);
  return view_of(source, *dtype);
}

TensorView from_attributes(nb::handle tensor, const char* name) {
  const nb::object dtype = attribute(tensor, names().dtype);
  const auto* found = std::find(dtypes.begin(), dtypes.end(), dtype.ptr());
  if (found == dtypes.end()) refuse_dtype(tensor, name);
  void* const data = pointer_from(call(tensor, names().data_ptr), name);
  const nb::object shape = attribute(tensor, names().shape);
  const nb::object strides = call(tensor, names().stride);
  const int64_t device = integer_from(call(tensor, names().get_device), name);
  return tensor_of(data, DType(found - dtypes.begin()), shape, strides, device, name);
}

}  // namespace

bool is_torch_tensor(nb::handle object) {
  return tensor_class != nullptr && PyObject_TypeCheck(object.ptr(), tensor_class);
}

TensorView torch_tensor_from(nb::handle tensor, const char* name) {
  return exchange_table != nullptr ? from_exchange(tensor, name) : from_attributes(tensor, name);
}

nb::handle torch_dtype(DType dtype) { return dtypes[size_t(dtype)]; }

bool has_exchange_table() { return exchange_table != nullptr; }

std::optional<TensorView> plain_tensor_from(nb::handle tensor) {
  nb::dlpack::dltensor source;
  if (!describe(tensor, source)) {  // meta and sparse tensors, for example
    PyErr_Clear();
    return {};
  }
  const std::optional<DType> dtype = dtype_from(source.dtype);
  const bool is_here = source.device.device_type == kCuda || source.device.device_type == kCpu;
  if (source.ndim != 4 || !dtype || !is_here) return {};
  if (std::find(source.shape, source.shape + 4, 0) != source.shape + 4) return {};
  // Rows of one element: their stride does not matter. They are also the only contiguous rows that
  // torch's public functions can give the negative bit (is_negated).
  if (source.strides[3] != 1 || source.shape[3] == 1) return {};
  return view_of(source, *dtype);
}

nb::object contiguous_copy(nb::handle tensor) { return call(tensor, names().contiguous); }

bool is_negated(nb::handle tensor) { return call(tensor, names().is_neg).ptr() == Py_True; }
nb::object copy_with_signs(nb::handle tensor) { return call(tensor, names().resolve_neg); }

void add_torch_tensors(nb::module_& module) {
  using namespace nb::literals;
  module.def("know_torch", &know_torch, "tensors"_a, "dtypes"_a, "exchange"_a.none(),
             "From now on a torch.Tensor is accepted wherever a tuple is. `exchange` is torch's "
             "__dlpack_c_exchange_api__, or None.");
}

}  // namespace keyhole::python
