// src/kernels/device/key_list.cuh
#pragma once

#include "kernels/device/params.h"

namespace keyhole::device {

// The keys of one query, or of neighbouring queries that share them; padding is among them.
struct KeyList {
  const int32_t* keys;
  int32_t count;
};
// group: of the head; -1: it has no lists here. list: query / view.rows_per_list.
__device__ inline KeyList key_list(const GatherView& view, int32_t group, int64_t list) {
  if (group < 0) return {nullptr, 0};
  const int64_t place = group * view.lists + list;
  return {view.keys + view.list_begin[place], view.list_count[place]};
}

}  // namespace keyhole::device
