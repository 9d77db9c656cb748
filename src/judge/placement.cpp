// src/judge/placement.cpp
#include "judge/placement.h"

#include <algorithm>

#include "base/int_math.h"

namespace keyhole::judge {

Placement between_moats(const TensorView& view, int64_t extent, int64_t skew) {
  constexpr int64_t kMoatBytes = 4096;
  const int64_t moat = kMoatBytes / bytes_of(view.dtype), first = moat + skew;
  return {.view = view, .first = first, .elements = first + extent + moat};
}

Placement place_apart(DType dtype, const std::vector<int64_t>& shape, bool swaps, bool is_aligned) {
  TensorView view;
  view.dtype = dtype;
  view.rank = int(shape.size());
  std::copy(shape.begin(), shape.end(), view.shape);
  // Odd gaps, so that nothing is aligned; or multiples of 8 elements, which are 16 bytes or more.
  const auto padded = [&](int64_t count, int64_t gap) {
    return is_aligned ? round_up(count + gap, int64_t{8}) : count + gap;
  };
  int64_t extent = view.rank > 1 ? padded(shape.back(), 3) : shape.back();
  view.strides[view.rank - 1] = 1;
  if (view.rank == 3) {
    view.strides[1] = extent, view.strides[0] = padded(extent * shape[1], 5);
    extent = view.strides[0] * shape[0];
  } else if (view.rank == 4) {
    const size_t inner = swaps ? 1 : 2, outer = swaps ? 2 : 1;
    view.strides[inner] = extent;
    view.strides[outer] = padded(extent * shape[inner], 7);
    view.strides[0] = padded(view.strides[outer] * shape[outer], 1);
    extent = view.strides[0] * shape[0];
  }
  return between_moats(view, extent);
}

}  // namespace keyhole::judge
