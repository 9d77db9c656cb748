// src/kernels/device/key_list.cuh
// The list of keys of one query, or of neighbouring queries that share it, in a plan or in a table.
#pragma once

#include "kernels/device/params.h"

namespace keyhole::device {

struct KeyList {
  const GatherView& view;
  const void* entries;
  int32_t count;  // places: one per key, or per padding
  int32_t end;    // keys from here on are ignored

  // The key at an index of the list; -1: none. The entries of an index tensor are unchecked: one
  // that is not a key must never become an address. A plan has contiguous 32-bit entries, the
  // defaults of a table.
  __device__ __forceinline__ int32_t at(uint32_t place) const {
    if (place >= uint32_t(count)) return -1;
    const uint32_t keys_per_entry = uint32_t(view.table.keys_per_entry);
    if (keys_per_entry == 1) return entry_within(place, end);
    const uint32_t index = place / keys_per_entry;
    const int32_t entry = entry_within(index, end);
    const int64_t key = int64_t{entry} * keys_per_entry + (place - index * keys_per_entry);
    return entry >= 0 && key < end ? int32_t(key) : -1;
  }
  // The same for lists whose entries are single keys.
  __device__ __forceinline__ int32_t single_at(uint32_t place) const {
    return place < uint32_t(count) ? entry_within(place, end) : -1;
  }

 private:
  // -1 for an entry that is negative, or not below the limit.
  __device__ __forceinline__ int32_t entry_within(uint32_t index, int32_t limit) const {
    const int64_t offset = index * view.table.entry_stride;
    if (view.table.is_wide) {
      const long long entry = __ldg(static_cast<const long long*>(entries) + offset);
      return uint64_t(entry) < uint64_t(limit) ? int32_t(entry) : -1;
    }
    const int32_t entry = __ldg(static_cast<const int32_t*>(entries) + offset);
    return uint32_t(entry) < uint32_t(limit) ? entry : -1;
  }
};

// How many entries of a list of a table are used.
__device__ inline int32_t used_entries(const KeyTable& table, int32_t group, int64_t list) {
  if (table.counts.numbers == nullptr) return table.count;
  const int64_t at = table.count_at(group, list);
  const int64_t used = table.counts.is_wide
                           ? __ldg(static_cast<const long long*>(table.counts.numbers) + at)
                           : __ldg(static_cast<const int32_t*>(table.counts.numbers) + at);
  return int32_t(max(int64_t{0}, min(used, int64_t{table.count})));
}

// group: of the head; -1: it has no lists here. list: query / view.rows_per_list.
__device__ inline KeyList key_list(const GatherView& view, int32_t group, int64_t list) {
  if (group < 0) return {view, nullptr, 0, 0};
  if (view.table.is_given()) {
    const int64_t bytes = view.table.begin_of(group, list) * (view.table.is_wide ? 8 : 4);
    return {view, static_cast<const char*>(view.table.entries) + bytes,
            used_entries(view.table, group, list) * view.table.keys_per_entry,
            int32_t(view.keys_end(list))};
  }
  const int64_t place = group * view.lists + list;
  return {view, view.keys + view.list_begin[place], view.list_count[place], int32_t(view.k_len)};
}

}  // namespace keyhole::device
