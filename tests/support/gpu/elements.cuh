// tests/support/gpu/elements.cuh
// Launches with one thread for each of many things, and single elements of tensors of any dtype and
// any strides. Nothing here is shared with the kernels under test.
#pragma once

#include <algorithm>

#include "base/dtype.h"
#include "kernels/device/check_cuda.h"
#include "keyhole/tensor.h"

namespace keyhole::test {

// In a kernel: for (int64_t i = first_index(); i < count; i += index_step()).
__device__ inline int64_t first_index() {
  return int64_t{blockIdx.x} * int64_t{blockDim.x} + threadIdx.x;
}
__device__ inline int64_t index_step() { return int64_t{gridDim.x} * int64_t{blockDim.x}; }

// kernel(count, args...) on the default stream.
template <class... Parameters, class... Args>
void launch_over(int64_t count, void (*kernel)(int64_t, Parameters...), const Args&... args) {
  constexpr int64_t kThreads = 128, kMostBlocks = 1 << 16;
  if (count <= 0) return;
  const int64_t blocks = std::min((count + kThreads - 1) / kThreads, kMostBlocks);
  cudaGetLastError();  // an error that an earlier call left behind is not this launch's
  kernel<<<unsigned(blocks), unsigned(kThreads)>>>(count, args...);
  check_cuda(cudaGetLastError(), "launching a kernel of the tests");
}

// How far element `index`, in logical order, lies behind element 0; counted in elements.
__device__ inline int64_t place_of(const TensorView& tensor, int64_t index) {
  int64_t place = 0;
  for (int d = tensor.rank - 1; d >= 0; --d) {
    place += index % tensor.shape[d] * tensor.strides[d];
    index /= tensor.shape[d];
  }
  return place;
}

__device__ inline double load(const TensorView& tensor, int64_t place) {
  switch (tensor.dtype) {
    case DType::f16:
      return double(to_f32(static_cast<const Half*>(tensor.data)[place]));
    case DType::bf16:
      return double(to_f32(static_cast<const BFloat16*>(tensor.data)[place]));
    case DType::e4m3:
      return double(to_f32(static_cast<const E4m3*>(tensor.data)[place]));
    case DType::f32:
      return double(static_cast<const float*>(tensor.data)[place]);
    case DType::f64:
      break;
  }
  return static_cast<const double*>(tensor.data)[place];
}

__device__ inline void store(const TensorView& tensor, int64_t place, double value) {
  switch (tensor.dtype) {
    case DType::f16:
      static_cast<Half*>(tensor.data)[place] = to_f16(float(value));
      return;
    case DType::bf16:
      static_cast<BFloat16*>(tensor.data)[place] = to_bf16(float(value));
      return;
    case DType::e4m3:
      static_cast<E4m3*>(tensor.data)[place] = to_e4m3(float(value));
      return;
    case DType::f32:
      static_cast<float*>(tensor.data)[place] = float(value);
      return;
    case DType::f64:
      static_cast<double*>(tensor.data)[place] = value;
  }
}

__device__ inline double element(const TensorView& tensor, int64_t index) {
  return load(tensor, place_of(tensor, index));
}

}  // namespace keyhole::test
