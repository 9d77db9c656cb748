// src/kernels/sm90/tma_tensors.cpp
#include "kernels/sm90/tma_tensors.h"

#include <algorithm>

#include "base/check.h"

namespace keyhole::sm90 {
namespace {

constexpr int64_t kStrideEnd = int64_t{1} << 40;  // strides are less, in bytes
constexpr int64_t kSizeEnd = int64_t{1} << 31;    // coordinates are int32
constexpr const char* kNames[] = {"batch", "heads", "length"};

// Classes `begin` to `end`, each with `rows` rows.
TmaTensor classes_as_tensor(const TensorView& tensor, int64_t stride, int64_t begin, int64_t end,
                            int64_t rows) {
  const int64_t bytes = bytes_of(tensor.dtype);
  TmaTensor result;
  result.base = static_cast<const std::byte*>(tensor.data);
  if (end == begin || rows == 0) return result;
  result.base = static_cast<const std::byte*>(tensor.data) + begin * tensor.strides[2] * bytes;
  const int64_t sizes[] = {tensor.shape[3], rows, end - begin, tensor.shape[1], tensor.shape[0]};
  const int64_t steps[] = {tensor.strides[2], tensor.strides[2], tensor.strides[1],
                           tensor.strides[0]};
  for (int d = 0; d < kBoxDims; ++d) result.dims[d] = uint64_t(std::max<int64_t>(1, sizes[d]));
  for (int d = 1; d < kBoxDims; ++d) {
    // The stride of a dimension of size 1 is never used and may be anything.
    if (result.dims[d] == 1) continue;
    result.strides[d - 1] = uint64_t(steps[d - 1] * (d == 1 ? stride : 1) * bytes);
  }
  return result;
}

}  // namespace

TmaTensors tma_tensors(const TensorView& tensor, int32_t stride) {
  const int64_t length = tensor.shape[2], rest = length % stride;
  // If all classes have the same length, all of them count as longer ones.
  const int64_t num_longer = rest == 0 ? stride : rest;
  const int64_t rows = length / stride;
  TmaTensors tensors;
  tensors.num_longer = int32_t(num_longer);
  tensors.longer = classes_as_tensor(tensor, stride, 0, num_longer, rest == 0 ? rows : rows + 1);
  tensors.shorter = classes_as_tensor(tensor, stride, num_longer, stride, rows);
  // A tensor without rows is encoded as one row that no coordinate reaches: its classes count from
  // 1.
  tensors.longer_origin = length == 0 ? -1 : 0;
  tensors.shorter_origin = int32_t(rows == 0 ? num_longer - 1 : num_longer);
  return tensors;
}

std::string why_no_tma(const TensorView& tensor) {
  const int64_t bytes = bytes_of(tensor.dtype);
  for (int d = 0; d < 3; ++d) {
    const int64_t size = tensor.shape[d], stride = tensor.strides[d];
    if (size <= 1) continue;
    if (stride <= 0) {
      return say("reads tensors whose strides are positive, not ", stride, " for ", kNames[d]);
    }
    // A class may step from the first row directly to the last.
    if (stride >= kStrideEnd / bytes / (d == 2 ? size - 1 : 1)) {
      return d == 2
                 ? say("reads heads of less than 2^40 bytes, not ", size, " rows in steps of ",
                       stride, " elements")
                 : say("takes strides below 2^40 bytes, not ", stride, " elements for ", kNames[d]);
    }
    if (size >= kSizeEnd) return say("reads sizes below 2^31, not ", size, " for ", kNames[d]);
  }
  return {};
}

}  // namespace keyhole::sm90
