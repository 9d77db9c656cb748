// tests/support/gpu/reference.h
// Attention in fp64 on a GPU, straight from the definition: one thread for each pair, row or
// element, no tiles and no plan. The mask is one bit per pair, drawn from the pattern. What is not
// attended is never read. It is the judge of the GPU kernels, and is itself judged by the reference
// of the CPU (tests/gpu/reference_test.cpp).
#pragma once

#include <cstdint>

#include "keyhole/tensor.h"
#include "support/gpu/gpu_array.h"

namespace keyhole::test {

// Plain data: passed to kernels by value. Rows are counted in logical order, [batch][heads][q_len];
// pairs are rows times k_len.
struct ReferenceInputs {
  int64_t batch = 0, heads = 0, kv_heads = 1, q_len = 0, k_len = 0, head_dim = 0, v_head_dim = 0;
  double scale = 1, softcap = 0;
  TensorView q, k, v, dout, sink;     // on the GPU; sink may be missing
  const uint64_t* allowed = nullptr;  // bit p % 64 of word p / 64: pair p

  int64_t num_rows() const { return batch * heads * q_len; }
  int64_t num_pairs() const { return num_rows() * k_len; }
  int64_t num_keys() const { return batch * kv_heads * k_len; }
};

// In logical order; dsink is empty without a sink.
struct GpuReference {
  GpuArray<double> out, lse, dq, dk, dv, dsink;
};

// Queued on the default stream.
GpuReference reference_on_gpu(const ReferenceInputs& in);

}  // namespace keyhole::test
