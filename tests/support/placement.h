// tests/support/placement.h
// Where the elements of a hostile tensor lie, and what lies around them: the same on the host and
// on a GPU.
#pragma once

#include <cstdint>
#include <vector>

#include "keyhole/tensor.h"
#include "support/case.h"

namespace keyhole::test {

// Both are NaN in every dtype, read at any 2-byte boundary.
inline constexpr uint16_t kNanMoat = 0x7ffb;  // around inputs
inline constexpr uint16_t kCanary = 0xfffd;   // around outputs

struct Placement {
  TensorView view;       // its data is still to come
  int64_t first = 0;     // where element 0 lies, counted in elements
  int64_t elements = 0;  // moats included
  int64_t bytes() const { return elements * bytes_of(view.dtype); }
  int64_t first_byte() const { return first * bytes_of(view.dtype); }
};

// `shape` has 4 dimensions, or 3 (lse), or 1 (sink).
Placement place(DType dtype, const std::vector<int64_t>& shape, Layout layout);

}  // namespace keyhole::test
