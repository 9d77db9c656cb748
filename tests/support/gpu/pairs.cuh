// tests/support/gpu/pairs.cuh
// Where a row, a pair or a key of a ReferenceInputs stands, and how to walk the pairs of a row or
// of a key.
#pragma once

#include "support/gpu/elements.cuh"
#include "support/gpu/reference.h"

namespace keyhole::test {

__device__ inline bool is_allowed(const ReferenceInputs& in, int64_t pair) {
  return in.allowed[pair >> 6] >> (pair & 63) & 1;
}

// The first elements of what a pair of a row reads, as places in the tensors.
struct RowPlace {
  int64_t batch, head, kv_head, query;

  __device__ RowPlace(const ReferenceInputs& in, int64_t row)
      : batch(row / in.q_len / in.heads),
        head(row / in.q_len % in.heads),
        kv_head(head / (in.heads / in.kv_heads)),
        query(row % in.q_len) {}
  __device__ int64_t in_queries(const TensorView& tensor) const {  // q, dout
    return batch * tensor.strides[0] + head * tensor.strides[1] + query * tensor.strides[2];
  }
  __device__ int64_t in_keys(const TensorView& tensor, int64_t key) const {  // k, v
    return batch * tensor.strides[0] + kv_head * tensor.strides[1] + key * tensor.strides[2];
  }
};

__device__ inline double sink_of(const ReferenceInputs& in, int64_t head) {
  return load(in.sink, head * in.sink.strides[0]);
}

// visit(key, pair) for each key that a row sees, in order.
template <class Visit>
__device__ void for_each_key(const ReferenceInputs& in, int64_t row, const Visit& visit) {
  for (int64_t key = 0; key < in.k_len; ++key) {
    const int64_t pair = row * in.k_len + key;
    if (is_allowed(in, pair)) visit(key, pair);
  }
}

// visit(row, pair) for each query of each head that sees a key; `at` counts keys in logical order,
// [batch][kv_heads][k_len].
template <class Visit>
__device__ void for_each_query(const ReferenceInputs& in, int64_t at, const Visit& visit) {
  const int64_t key = at % in.k_len, kv_head = at / in.k_len % in.kv_heads;
  const int64_t batch = at / in.k_len / in.kv_heads, group = in.heads / in.kv_heads;
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (int64_t query = 0; query < in.q_len; ++query) {
      const int64_t row = (batch * in.heads + head) * in.q_len + query;
      const int64_t pair = row * in.k_len + key;
      if (is_allowed(in, pair)) visit(row, pair);
    }
  }
}

}  // namespace keyhole::test
