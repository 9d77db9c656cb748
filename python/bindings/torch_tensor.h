// python/bindings/torch_tensor.h
// Reads pointer, dtype, shape, strides and device of a torch.Tensor, on the path of every call:
// through DLPack's table of C functions if torch has one (2.10 and newer), else through Python
// methods. Nothing of torch is linked.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>

#include "keyhole/tensor.h"

namespace keyhole::python {

// Whether it is an instance of the class that know_torch() was given.
bool is_torch_tensor(nanobind::handle object);
TensorView torch_tensor_from(nanobind::handle tensor, const char* name);
nanobind::handle torch_dtype(DType dtype);
// Whether torch has the table of C functions.
bool has_exchange_table();
// The view of a tensor that kernels take as it is: four dimensions, not empty, contiguous rows of
// more than one element, a supported dtype, on the CPU or a CUDA GPU. Nothing for any other tensor,
// without an error. Needs the table.
std::optional<TensorView> plain_tensor_from(nanobind::handle tensor);
// tensor.contiguous(), made by torch on its current stream.
nanobind::object contiguous_copy(nanobind::handle tensor);
// Whether torch's negative bit is set: the memory holds the elements with the opposite sign, as for
// z.conj().imag. And a copy with the bit resolved.
bool is_negated(nanobind::handle tensor);
nanobind::object copy_with_signs(nanobind::handle tensor);

}  // namespace keyhole::python
