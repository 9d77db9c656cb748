// src/api/check_tensor.cpp
#include "api/check_tensor.h"

#include <algorithm>

#include "base/int_math.h"

namespace keyhole {

std::string shape_text(const TensorView& tensor) {
  std::string text = "[";
  for (int d = 0; d < tensor.rank; ++d) text += say(d ? ", " : "", tensor.shape[d]);
  return text + "]";
}

Extent extent_of(const TensorView& tensor, const char* name) {
  if (!tensor.is_given()) return {0, 0};
  int64_t last = 0;
  for (int d = 0; d < tensor.rank; ++d) {
    if (tensor.shape[d] == 0) return {0, 0};
    last = checked_add(last, checked_mul(tensor.shape[d] - 1, tensor.strides[d], name), name);
  }
  const int64_t bytes = checked_mul(checked_add(last, 1, name), bytes_of(tensor.dtype), name);
  const auto begin = reinterpret_cast<uintptr_t>(tensor.data);
  return {begin, begin + uintptr_t(bytes)};
}

Extent check_tensor(const char* who, const TensorView& tensor, const char* name, int rank,
                    const char* expected) {
  KEYHOLE_CHECK(tensor.rank == rank, who, ": ", name, " has ", tensor.rank,
                " dimensions; expected ", rank, ": ", expected);
  for (int d = 0; d < rank; ++d) {
    KEYHOLE_CHECK(tensor.shape[d] >= 0, who, ": ", name, " has shape ", shape_text(tensor),
                  "; sizes must not be negative");
    KEYHOLE_CHECK(tensor.shape[d] <= 1 || tensor.strides[d] >= 0, who, ": ", name, " has stride ",
                  tensor.strides[d], " in dimension ", d,
                  "; negative strides are not supported, copy it first");
  }
  const int64_t elements = tensor.num_elements();
  const int last = rank - 1;
  const bool is_contiguous = tensor.shape[last] <= 1 || tensor.strides[last] == 1 || elements == 0;
  KEYHOLE_CHECK(rank != 4 || is_contiguous, who, ": ", name, " has stride ", tensor.strides[last],
                " in its last dimension; it must be contiguous there (stride 1), copy it first");
  KEYHOLE_CHECK(elements == 0 || tensor.data != nullptr, who, ": ", name, " has shape ",
                shape_text(tensor), " but its data pointer is null");
  const auto address = reinterpret_cast<uintptr_t>(tensor.data);
  KEYHOLE_CHECK(address % uintptr_t(bytes_of(tensor.dtype)) == 0, who, ": ", name,
                " is not aligned to its element size of ", bytes_of(tensor.dtype), " bytes");
  return extent_of(tensor, name);
}

void check_sizes(const char* who, const TensorView& tensor, const char* name,
                 std::initializer_list<int64_t> want, const char* meaning, const char* of) {
  if (std::equal(want.begin(), want.end(), tensor.shape)) return;
  std::string expected;
  for (const int64_t size : want) expected += say(expected.empty() ? "[" : ", ", size);
  KEYHOLE_CHECK(false, who, ": ", name, " has shape ", shape_text(tensor), "; expected ", expected,
                "], ", meaning, of);
}

std::string place_text(const Device& device) {
  return device.kind == Device::Kind::cpu ? "in host memory" : say("on GPU ", device.ordinal);
}
void check_same_device(const char* who, const TensorView& tensor, const char* name,
                       const TensorView& q, const char* q_name) {
  if (!tensor.is_given()) return;
  KEYHOLE_CHECK(tensor.device == q.device, who, ": ", q_name, " is ", place_text(q.device), " but ",
                name, " is ", place_text(tensor.device),
                "; all tensors of a call must be in one place");
}

void check_same_dtype(const char* who, const TensorView& tensor, const char* name,
                      const TensorView& q, const char* q_name) {
  KEYHOLE_CHECK(tensor.dtype == q.dtype, who, ": ", q_name, " is ", to_string(q.dtype), " but ",
                name, " is ", to_string(tensor.dtype), "; they must be equal");
}

void check_apart(const char* who, const Extent& output, const char* output_name,
                 const Extent& other, const char* other_name) {
  const bool is_apart = output.end <= other.begin || other.end <= output.begin ||
                        output.begin == output.end || other.begin == other.end;
  KEYHOLE_CHECK(is_apart, who, ": ", output_name, " overlaps ", other_name,
                " in memory; outputs need memory of their own");
}

void check_output(const char* who, const TensorView& tensor, const char* name) {
  if (tensor.num_elements() == 0) return;  // any strides are fine
  int64_t reach = 0;  // elements spanned by the dimensions seen so far, narrowest stride first
  bool used[TensorView::kMaxRank] = {};
  for (int round = 0; round < tensor.rank; ++round) {
    int next = -1;
    for (int d = 0; d < tensor.rank; ++d) {
      if (!used[d] && (next < 0 || tensor.strides[d] < tensor.strides[next])) next = d;
    }
    used[next] = true;
    if (tensor.shape[next] == 1) continue;
    KEYHOLE_CHECK(tensor.strides[next] > reach, who, ": ", name,
                  " is written but its elements overlap: ", "stride ", tensor.strides[next],
                  " in dimension ", next,
                  " is smaller than the span of the dimensions inside it; pass memory of its own");
    reach += (tensor.shape[next] - 1) * tensor.strides[next];
  }
}

void check_no_overlap(const char* who, const TensorView& output, const char* output_name,
                      const TensorView& other, const char* other_name) {
  check_apart(who, extent_of(output, output_name), output_name, extent_of(other, other_name),
              other_name);
}

}  // namespace keyhole
