// src/api/check_indices.cpp
#include "api/check_indices.h"

#include <limits>

#include "base/check.h"
#include "base/int_math.h"

namespace keyhole {
namespace {

constexpr int64_t kMostEntries = int64_t{1} << 30;  // of a list

std::string place_text(const Device& device) {
  return device.kind == Device::Kind::cpu ? "in host memory" : say("on GPU ", device.ordinal);
}

void check_memory(const IndexView& indices) {
  const int64_t bytes = indices.is_wide ? 8 : 4;
  int64_t last = 0;
  bool is_empty = false;
  for (int d = 0; d < 4; ++d) {
    KEYHOLE_CHECK(indices.shape[d] >= 0, "attention: indices are ", to_string(indices),
                  "; sizes must not be negative");
    KEYHOLE_CHECK(indices.shape[d] <= 1 || indices.strides[d] >= 0,
                  "attention: indices have stride ", indices.strides[d], " in dimension ", d,
                  "; negative strides are not supported, copy them first");
    is_empty = is_empty || indices.shape[d] == 0;
    if (indices.shape[d] <= 1) continue;
    last = checked_add(last, checked_mul(indices.shape[d] - 1, indices.strides[d], "indices"),
                       "indices");
  }
  checked_mul(checked_add(last, 1, "indices"), bytes, "indices");
  KEYHOLE_CHECK(is_empty || indices.data != nullptr, "attention: indices are ", to_string(indices),
                " but their data pointer is null");
  KEYHOLE_CHECK(reinterpret_cast<uintptr_t>(indices.data) % uintptr_t(bytes) == 0,
                "attention: indices are not aligned to their element size of ", bytes, " bytes");
}

}  // namespace

void check_indices(const IndexView& indices, const TensorView& q, const TensorView& k) {
  KEYHOLE_CHECK(indices.device == q.device, "attention: q is ", place_text(q.device),
                " but indices are ", place_text(indices.device),
                "; all tensors of a call must be in one place");
  check_memory(indices);
  KEYHOLE_CHECK(indices.rows_per_list >= 1, "attention: rows_per_list is ", indices.rows_per_list,
                "; it must be 1 or more");
  const int64_t batch = q.shape[0], heads = q.shape[1], kv_heads = k.shape[1];
  KEYHOLE_CHECK(indices.shape[0] == batch, "attention: indices are ", to_string(indices),
                "; their batch must be that of q, ", batch);
  const int64_t index_heads = indices.shape[1];
  KEYHOLE_CHECK(index_heads == kv_heads || index_heads == heads || index_heads == 1,
                "attention: indices are ", to_string(indices), "; their heads must be those of k, ",
                kv_heads, ", those of q, ", heads, ", or 1");
  const int64_t q_len = q.shape[2], lists = ceil_div(q_len, indices.rows_per_list);
  KEYHOLE_CHECK(indices.shape[2] == lists, "attention: indices are ", to_string(indices),
                "; q has ", q_len, " queries, ", indices.rows_per_list,
                " of them to a list: expected ", lists, " lists");
  constexpr int64_t kMostRows = std::numeric_limits<int32_t>::max();
  KEYHOLE_CHECK(q_len <= kMostRows && k.shape[2] <= kMostRows, "attention: q has length ", q_len,
                " and k has ", k.shape[2], "; lists of keys take up to ", kMostRows);
  KEYHOLE_CHECK(indices.shape[3] <= kMostEntries, "attention: indices are ", to_string(indices),
                "; a list has at most ", kMostEntries, " entries");
}

TensorView memory_of(const IndexView& indices) {
  TensorView memory;
  memory.data = const_cast<void*>(indices.data);
  memory.dtype = indices.is_wide ? DType::f64 : DType::f32;  // as wide
  memory.rank = 4;
  std::copy_n(indices.shape, 4, memory.shape);
  std::copy_n(indices.strides, 4, memory.strides);
  memory.device = indices.device;
  return memory;
}

GatherView lists_of(const IndexView& indices, const TensorView& q, const TensorView& k) {
  const auto stride = [&](int d) { return indices.shape[d] > 1 ? indices.strides[d] : 0; };
  const int64_t index_heads = indices.shape[1];
  GatherView view{};
  view.q_len = q.shape[2];
  view.k_len = k.shape[2];
  view.groups = narrow(checked_mul(q.shape[0], index_heads, "attention: heads of the indices"),
                       "attention: batch x heads of the indices");
  // More queries than there are share a list as all of them do.
  view.rows_per_list = int32_t(std::min(indices.rows_per_list, std::max<int64_t>(1, q.shape[2])));
  view.lists = indices.shape[2];
  view.table = {.entries = indices.data,
                .is_wide = indices.is_wide,
                .heads_per_group =
                    int32_t(std::max<int64_t>(1, q.shape[1] / std::max<int64_t>(1, index_heads))),
                .groups_per_batch = int32_t(std::max<int64_t>(1, index_heads)),
                .count = int32_t(indices.shape[3]),
                .batch_stride = stride(0),
                .group_stride = stride(1),
                .list_stride = stride(2),
                .entry_stride = indices.shape[3] > 1 ? indices.strides[3] : 1};
  return view;
}

}  // namespace keyhole
