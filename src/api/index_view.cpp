// src/api/index_view.cpp
// IndexView: strides of a contiguous tensor, and the text that error messages show.
#include <algorithm>

#include "base/check.h"
#include "base/int_math.h"
#include "keyhole/lists.h"

namespace keyhole {
namespace {

void set_shape(IndexView& indices, std::initializer_list<int64_t> shape) {
  KEYHOLE_CHECK(shape.size() == 4, "IndexView: got ", shape.size(),
                " dimensions; indices have 4: [batch, heads, lists, entries]");
  std::copy(shape.begin(), shape.end(), indices.shape);
  int64_t stride = 1;
  for (int d = 3; d >= 0; --d) {
    indices.strides[d] = stride;
    // The 1 keeps an empty dimension from making the other strides 0.
    stride = checked_mul(stride, std::max<int64_t>(indices.shape[d], 1), "IndexView");
  }
}

}  // namespace

IndexView::IndexView(const int32_t* memory, std::initializer_list<int64_t> sizes) : data(memory) {
  set_shape(*this, sizes);
}
IndexView::IndexView(const int64_t* memory, std::initializer_list<int64_t> sizes)
    : data(memory), is_wide(true) {
  set_shape(*this, sizes);
}

std::string to_string(const IndexView& indices) {
  const int64_t* n = indices.shape;
  return say(indices.is_wide ? "int64" : "int32", " [", n[0], ", ", n[1], ", ", n[2], ", ", n[3],
             "]");
}

}  // namespace keyhole
