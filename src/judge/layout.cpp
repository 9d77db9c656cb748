// src/judge/layout.cpp
#include "judge/layout.h"

#include <algorithm>

namespace keyhole::judge {
namespace {

constexpr int64_t kOddStride =
    12'345'677;  // for dimensions of size 1: using it would leave the moat

// Dense strides when the dimensions are nested in `order`, outermost first; rows of `row` elements.
void nest(const std::vector<int64_t>& shape, const std::vector<int>& order, int64_t row,
          int64_t* strides) {
  int64_t stride = 1;
  for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
    strides[*dim] = stride;
    stride *= dim == order.rbegin() ? row : std::max<int64_t>(shape[size_t(*dim)], 1);
  }
}

}  // namespace

Placement place(DType dtype, const std::vector<int64_t>& shape, Layout layout) {
  const int rank = int(shape.size());
  TensorView view;
  view.dtype = dtype;
  view.rank = rank;
  std::copy(shape.begin(), shape.end(), view.shape);
  int64_t* strides = view.strides;
  std::vector<int> order(static_cast<size_t>(rank));
  for (int i = 0; i < rank; ++i) order[size_t(i)] = i;
  int64_t row = std::max<int64_t>(shape[size_t(rank - 1)], 1);
  if (layout == Layout::bshd && rank == 4) std::swap(order[1], order[2]);
  if (layout == Layout::padded) row += 3;
  if (layout == Layout::sliced) row *= 2;
  nest(shape, order, row, strides);
  if (layout == Layout::expanded_heads && rank == 4) strides[1] = 0;
  if (layout == Layout::expanded_batch && rank == 4) strides[0] = 0;
  int64_t extent = 1;  // elements from the first to one past the last
  for (int i = 0; i < rank; ++i) {
    extent += (std::max<int64_t>(shape[size_t(i)], 1) - 1) * strides[i];
    if (layout == Layout::odd_strides && shape[size_t(i)] == 1) strides[i] = kOddStride;
  }
  return between_moats(view, extent, layout == Layout::odd_offset ? 1 : 0);
}

}  // namespace keyhole::judge
