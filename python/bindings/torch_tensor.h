// python/bindings/torch_tensor.h
// What a torch.Tensor says of itself, on the way of every call: asked through DLPack's table of C
// functions where torch has one (2.10 and newer), else through Python's methods. Nothing of torch
// is linked.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>

#include "keyhole/tensor.h"

namespace keyhole::python {

// Whether it is an instance of the class that know_torch() was given.
bool is_torch_tensor(nanobind::handle object);
TensorView torch_tensor_from(nanobind::handle tensor, const char* name);
nanobind::handle torch_dtype(DType dtype);
// Whether torch has the C functions.
bool has_exchange_table();
// With them, the same for a tensor that kernels take as it is: of four dimensions, with elements,
// rows of several elements that follow one another and a dtype of ours, on the CPU or a GPU of
// CUDA. Anything else is nothing, without an error.
std::optional<TensorView> plain_tensor_from(nanobind::handle tensor);
// A copy with its elements one behind the other, made by torch on its current stream.
nanobind::object contiguous_copy(nanobind::handle tensor);
// Whether its elements lie in memory with the other sign, as those of z.conj().imag do; and a copy
// that has them as they are.
bool is_negated(nanobind::handle tensor);
nanobind::object copy_with_signs(nanobind::handle tensor);

}  // namespace keyhole::python
