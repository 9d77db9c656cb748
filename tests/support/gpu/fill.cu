// tests/support/gpu/fill.cu
#include "support/gpu/elements.cuh"
#include "support/gpu/fill.h"

namespace keyhole::test {
namespace {

__global__ void paint(int64_t count, uint16_t* to, uint16_t pattern) {
  for (int64_t i = first_index(); i < count; i += index_step()) to[i] = pattern;
}

// Of several elements in one place, the one that the host writes last.
__device__ bool is_last_in_its_place(const TensorView& tensor, int64_t index) {
  for (int d = tensor.rank - 1; d >= 0; --d) {
    if (tensor.strides[d] == 0 && index % tensor.shape[d] != tensor.shape[d] - 1) return false;
    index /= tensor.shape[d];
  }
  return true;
}

__global__ void fill(int64_t count, TensorView tensor, Numbers numbers) {
  for (int64_t i = first_index(); i < count; i += index_step()) {
    if (is_last_in_its_place(tensor, i)) store(tensor, place_of(tensor, i), number_at(numbers, i));
  }
}

__global__ void paint_elements(int64_t count, TensorView tensor, int64_t words, uint16_t pattern) {
  for (int64_t i = first_index(); i < count; i += index_step()) {
    uint16_t* to = static_cast<uint16_t*>(tensor.data) + place_of(tensor, i) * words;
    for (int64_t word = 0; word < words; ++word) to[word] = pattern;
  }
}

__global__ void copy(int64_t count, TensorView to, TensorView from) {
  for (int64_t i = first_index(); i < count; i += index_step()) {
    store(to, place_of(to, i), element(from, i));
  }
}

__global__ void copy_heads(int64_t count, TensorView to, TensorView from, int64_t group) {
  for (int64_t i = first_index(); i < count; i += index_step()) {
    const int64_t x = i % to.shape[3], row = i / to.shape[3] % to.shape[2];
    const int64_t head = i / to.shape[3] / to.shape[2] % to.shape[1];
    const int64_t batch = i / to.shape[3] / to.shape[2] / to.shape[1];
    const int64_t source = batch * from.strides[0] + head / group * from.strides[1] +
                           row * from.strides[2] + x * from.strides[3];
    store(to, place_of(to, i), load(from, source));
  }
}

}  // namespace

void paint_on_gpu(void* memory, int64_t bytes, uint16_t pattern) {
  launch_over(bytes / 2, paint, static_cast<uint16_t*>(memory), pattern);
}
void fill_on_gpu(const TensorView& tensor, const Numbers& numbers) {
  launch_over(tensor.num_elements(), fill, tensor, numbers);
}
void paint_elements_on_gpu(const TensorView& tensor, uint16_t pattern) {
  launch_over(tensor.num_elements(), paint_elements, tensor, bytes_of(tensor.dtype) / 2, pattern);
}
void copy_on_gpu(const TensorView& to, const TensorView& from) {
  launch_over(to.num_elements(), copy, to, from);
}
void repeat_heads_on_gpu(const TensorView& to, const TensorView& from, int64_t group) {
  launch_over(to.num_elements(), copy_heads, to, from, group);
}

}  // namespace keyhole::test
