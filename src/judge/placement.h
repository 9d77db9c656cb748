// src/judge/placement.h
// Where the elements of a hostile tensor lie, and what lies around them: the same on the host and
// on a GPU.
#pragma once

#include <cstdint>
#include <vector>

#include "keyhole/tensor.h"

namespace keyhole::judge {

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

// Between two moats, of which the first is `skew` elements longer. `extent`: elements from the
// first of the view to one past the last.
Placement between_moats(const TensorView& view, int64_t extent, int64_t skew = 0);

// With gaps behind every row, head and batch entry. `shape`: [batch, heads, length, dim], [batch,
// heads, length] or [heads]. With `swaps`, length comes before heads in memory. Rows begin
// wherever, or at multiples of 16 bytes.
Placement place_apart(DType dtype, const std::vector<int64_t>& shape, bool swaps = false,
                      bool is_aligned = false);

}  // namespace keyhole::judge
