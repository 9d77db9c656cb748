// src/kernels/device/key_list.cuh
// The list of keys of one query, or of neighbouring queries that share it, in a plan or in a table.
#pragma once

#include "kernels/device/params.h"

namespace keyhole::device {

struct KeyList {
  const GatherView& view;
  const void* entries;
  int32_t count;

  // The key at an index of the list; -1: none. The entries of an index tensor are unchecked: one
  // that is not a key must never become an address. A plan has contiguous 32-bit entries, the
  // defaults of a table.
  __device__ __forceinline__ int32_t at(uint32_t place) const {
    if (place >= uint32_t(count)) return -1;
    const int64_t offset = place * view.table.entry_stride;
    if (view.table.is_wide) {
      const long long key = __ldg(static_cast<const long long*>(entries) + offset);
      return uint64_t(key) < uint64_t(view.k_len) ? int32_t(key) : -1;
    }
    const int32_t key = __ldg(static_cast<const int32_t*>(entries) + offset);
    return uint32_t(key) < uint32_t(view.k_len) ? key : -1;
  }
};

// group: of the head; -1: it has no lists here. list: query / view.rows_per_list.
__device__ inline KeyList key_list(const GatherView& view, int32_t group, int64_t list) {
  if (group < 0) return {view, nullptr, 0};
  if (view.table.is_given()) {
    const int64_t bytes = view.table.begin_of(group, list) * (view.table.is_wide ? 8 : 4);
    return {view, static_cast<const char*>(view.table.entries) + bytes, view.table.count};
  }
  const int64_t place = group * view.lists + list;
  return {view, view.keys + view.list_begin[place], view.list_count[place]};
}

}  // namespace keyhole::device
