// src/base/tensor.cpp
// TensorView: the checks and arithmetic of shapes, and the text that error messages show.
#include "keyhole/tensor.h"

#include <algorithm>

#include "base/check.h"
#include "base/int_math.h"

namespace keyhole {
namespace {

void set_shape(TensorView& tensor, std::initializer_list<int64_t> shape) {
  KEYHOLE_CHECK(shape.size() >= 1 && shape.size() <= size_t{TensorView::kMaxRank},
                "TensorView: got ", shape.size(), " dimensions; a tensor has 1 to ",
                TensorView::kMaxRank);
  tensor.rank = int(shape.size());
  std::copy(shape.begin(), shape.end(), tensor.shape);
  for (int i = 0; i < tensor.rank; ++i) {
    KEYHOLE_CHECK(tensor.shape[i] >= 0, "TensorView: dimension ", i, " is ", tensor.shape[i],
                  "; sizes must be 0 or more");
  }
}

}  // namespace

const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::f32:
      return "f32";
    case DType::f64:
      return "f64";
    case DType::e4m3:
      return "e4m3";
  }
  return "unknown";
}

int64_t bytes_of(DType dtype) {
  switch (dtype) {
    case DType::e4m3:
      return 1;
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::f32:
      return 4;
    case DType::f64:
      return 8;
  }
  throw Error(ErrorKind::usage, say("bytes_of: dtype ", int(dtype), " does not exist"));
}

TensorView::TensorView(const void* memory, DType element, std::initializer_list<int64_t> sizes)
    : data(const_cast<void*>(memory)), dtype(element) {
  set_shape(*this, sizes);
  int64_t stride = 1;
  for (int i = rank - 1; i >= 0; --i) {
    strides[i] = stride;
    // The 1 keeps an empty dimension from making the other strides 0.
    stride = checked_mul(stride, std::max<int64_t>(shape[i], 1), "TensorView");
  }
}

TensorView::TensorView(const void* memory, DType element, std::initializer_list<int64_t> sizes,
                       std::initializer_list<int64_t> steps)
    : data(const_cast<void*>(memory)), dtype(element) {
  KEYHOLE_CHECK(steps.size() == sizes.size(), "TensorView: got ", sizes.size(), " sizes but ",
                steps.size(), " strides; each dimension needs one of each");
  set_shape(*this, sizes);
  std::copy(steps.begin(), steps.end(), strides);
}

int64_t TensorView::num_elements() const {
  if (rank == 0 || std::count(shape, shape + rank, 0) > 0) return 0;
  int64_t product = 1;
  for (int i = 0; i < rank; ++i) product = checked_mul(product, shape[i], "tensor size");
  return product;
}

std::string to_string(const TensorView& tensor) {
  if (!tensor.is_given()) return "no tensor";
  std::string sizes;
  for (int i = 0; i < tensor.rank; ++i) sizes += say(i == 0 ? "" : ", ", tensor.shape[i]);
  return say(to_string(tensor.dtype), " [", sizes, "]");
}

}  // namespace keyhole
