// tests/support/gpu/bounds.h
// How far each element of a result may be from the reference, and what a plain fp32 loop makes of
// it: tests/support/tolerance.cpp on a GPU, by the same formulas (support/rounding.h).
#pragma once

#include "support/gpu/reference.h"
#include "support/rounding.h"

namespace keyhole::test {

// Parallel to the tensors of a GpuReference.
struct GpuBounds {
  struct Of {
    GpuArray<double> bound, plain;
  };
  Of out, lse, dq, dk, dv, dsink;
};

// For f16, bf16 and f32, whose sums are made in fp32. Queued on the default stream.
GpuBounds bounds_on_gpu(const ReferenceInputs& in, const Rounding& rules, const GpuReference& want);

}  // namespace keyhole::test
