// python/bindings/torch_memory.cpp
#include "torch_memory.h"

#include <span>

#include "convert.h"
#include "module.h"

namespace keyhole::python {
namespace {

// Functions of torch and of the package, from know_torch_memory(). They live as long as the
// interpreter.
struct Known {
  // (shape, strides, dtype) -> tensor, the second one on the current GPU; or None
  nb::handle empty_on_cpu, empty_on_gpu;
  nb::handle current_gpu;     // None in a torch without CUDA
  nb::handle bytes_on_gpu;    // (bytes, ordinal) -> tensor, by torch's public functions
  nb::handle byte, data_ptr;  // torch.uint8, and the name of a method
};
const Known* known = nullptr;

void know_torch_memory(nb::handle empty_on_cpu, nb::handle empty_on_gpu, nb::handle current_gpu,
                       nb::handle bytes_on_gpu, nb::handle byte) {
  known = new Known{.empty_on_cpu = empty_on_cpu.inc_ref(),
                    .empty_on_gpu = empty_on_gpu.inc_ref(),
                    .current_gpu = current_gpu.inc_ref(),
                    .bytes_on_gpu = bytes_on_gpu.inc_ref(),
                    .byte = byte.inc_ref(),
                    .data_ptr = PyUnicode_InternFromString("data_ptr")};
}

nb::object tuple_of(std::span<const int64_t> numbers) {
  nb::object tuple = owned(PyTuple_New(Py_ssize_t(numbers.size())));
  for (size_t d = 0; d < numbers.size(); ++d) {
    PyTuple_SetItem(tuple.ptr(), Py_ssize_t(d),
                    owned(PyLong_FromLongLong(numbers[d])).release().ptr());
  }
  return tuple;
}

// The function that allocates on this device, or None.
nb::handle empty_on(const Device& device) {
  if (device.kind == Device::Kind::cpu) return known->empty_on_cpu;
  const nb::handle nothing(Py_None);
  if (known->current_gpu.is_none()) return nothing;
  const nb::object current = owned(PyObject_CallNoArgs(known->current_gpu.ptr()));
  return nb::cast<int>(current) == device.ordinal ? known->empty_on_gpu : nothing;
}

nb::object empty_tensor(const Device& device, std::span<const int64_t> shape,
                        std::span<const int64_t> strides, nb::handle dtype) {
  const nb::handle empty = empty_on(device);
  if (empty.is_none()) return {};
  const nb::object sizes = tuple_of(shape), steps = tuple_of(strides);
  PyObject* const three[] = {sizes.ptr(), steps.ptr(), dtype.ptr()};
  return owned(PyObject_Vectorcall(empty.ptr(), three, 3, nullptr));
}

// While this lives, no object is collected. In the middle of a call a collection could run code
// that frees the memory of its tensors.
class NoCollection {
 public:
  NoCollection() : was_enabled_(PyGC_Disable() != 0) {}
  ~NoCollection() {
    if (was_enabled_) PyGC_Enable();
  }
  NoCollection(const NoCollection&) = delete;
  NoCollection& operator=(const NoCollection&) = delete;

 private:
  bool was_enabled_;
};

}  // namespace

nb::object empty_tensor(const Device& device, const int64_t (&shape)[4],
                        const int64_t (&strides)[4], nb::handle dtype) {
  return empty_tensor(device, std::span(shape), std::span(strides), dtype);
}

AllocateWorkspace TorchWorkspace::allocator() {
  if (device_.kind == Device::Kind::cpu || known == nullptr) return {};
  return [this](int64_t bytes) { return allocate(bytes); };
}

void* TorchWorkspace::allocate(int64_t bytes) {
  const nb::gil_scoped_acquire acquire;
  const NoCollection none;
  constexpr int64_t kStep = 1;
  tensor_ = empty_tensor(device_, {&bytes, 1}, {&kStep, 1}, known->byte);
  if (!tensor_.is_valid()) {
    const nb::object size = owned(PyLong_FromLongLong(bytes)),
                     ordinal = owned(PyLong_FromLong(device_.ordinal));
    PyObject* const two[] = {size.ptr(), ordinal.ptr()};
    tensor_ = owned(PyObject_Vectorcall(known->bytes_on_gpu.ptr(), two, 2, nullptr));
  }
  PyObject* const self[] = {tensor_.ptr()};
  const nb::object address =
      owned(PyObject_VectorcallMethod(known->data_ptr.ptr(), self, 1, nullptr));
  return pointer_from(address, "workspace");
}

void add_torch_memory(nb::module_& module) {
  using namespace nb::literals;
  module.def("know_torch_memory", &know_torch_memory, "empty_on_cpu"_a.none(),
             "empty_on_gpu"_a.none(), "current_gpu"_a.none(), "bytes_on_gpu"_a, "byte"_a,
             "How torch allocates memory. From now on calls on a GPU have their workspaces from "
             "there.");
}

}  // namespace keyhole::python
