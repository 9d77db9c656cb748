// src/kernels/device/top_k_rows.h
// What the kernels of top_k receive: the rows of some queries, and where their lists go.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/device/row_bits.h"
#include "kernels/select_contract.h"

namespace keyhole::device {

struct TopKRows {
  const void* scores = nullptr;  // rows of `entries`; strides count elements
  int64_t batch_stride = 0, group_stride = 0, row_stride = 0;
  int64_t entries = 0;
  int64_t groups = 1, rows = 0, num_rows = 0;  // rows: of a group; num_rows: of all groups
  int32_t k = 0;                               // at most `entries`
  int32_t* indices = nullptr;                  // of the first of these queries
  int64_t columns = 0, index_batch_stride = 0, index_group_stride = 0, index_row_stride = 0;
  int32_t* counts = nullptr;  // null: not wanted
  int64_t count_batch_stride = 0, count_group_stride = 0, count_row_stride = 0;
  RowBits visible, always;  // may be not given
  bool takes_short_rows = false;

  // Row i of num_rows.
  struct Place {
    int64_t batch, group, row;
  };
  constexpr Place place(int64_t i) const {
    const int64_t head = i / rows;
    return {head / groups, head % groups, i - head * rows};
  }
  template <class Storage>
  constexpr const Storage* scores_of(const Place& p) const {
    return static_cast<const Storage*>(scores) + p.batch * batch_stride + p.group * group_stride +
           p.row * row_stride;
  }
  constexpr int32_t* indices_of(const Place& p) const {
    return indices + p.batch * index_batch_stride + p.group * index_group_stride +
           p.row * index_row_stride;
  }
  constexpr int32_t* count_of(const Place& p) const {
    return counts + p.batch * count_batch_stride + p.group * count_group_stride +
           p.row * count_row_stride;
  }
  constexpr const uint32_t* visible_of(const Place& p) const {
    return visible.is_given() ? visible.row(p.batch * groups + p.group, p.row) : nullptr;
  }
  constexpr const uint32_t* always_of(const Place& p) const {
    return always.is_given() ? always.row(p.batch * groups + p.group, p.row) : nullptr;
  }
};

// The memory for the bits of the plans of a call.
int64_t top_k_bits_bytes(const TopKArgs& args);

// Queues the drawing of the bits into `memory`.
TopKRows top_k_rows(const TopKArgs& args, void* memory, cudaStream_t stream);

}  // namespace keyhole::device
