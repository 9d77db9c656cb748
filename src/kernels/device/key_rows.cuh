// src/kernels/device/key_rows.cuh
// The rows of a work item's keys in the tensors, and where its dk and dv go.
#pragma once

#include "kernels/device/ptx.cuh"
#include "kernels/device/work.cuh"

namespace keyhole::device {

// Rows of a tensor: row r < count begins at first + r * step.
template <class T>
struct TileRows {
  T* first;
  int64_t step;
  int count;    // may be negative; rows past it are not touched
  int columns;  // a multiple of 8
};

// How many of rows [first, first + size) of a residue class exist; 0 or less: none.
__device__ __forceinline__ int rows_left(int64_t num_rows, int64_t first, int size) {
  const int64_t left = num_rows - first;
  return int(left < size ? left : size);
}

// Keys of one kv head: those of a CTA, or the part that it currently processes.
struct KeyRows {
  int32_t batch, head;
  int64_t key;  // the first one
  int count;    // 0 or less: none

  template <class T>
  __device__ TileRows<T> of(const DeviceTensor& tensor, int64_t stride, int columns) const {
    return {tensor.row<T>(batch, head, key), stride * tensor.row_stride, count, columns};
  }
};
// An item has the keys of a tile of kTile; the CTA processes kPart of them at a time.
template <int kTile, int kPart>
__device__ __forceinline__ KeyRows key_rows(const BackwardParams& p, const Work& work, int part) {
  const int64_t first = int64_t{work.row_tile} * kTile + part * kPart;
  return {work.batch, work.kv_head, work.residue.first_k + p.view.stride * first,
          rows_left(work.residue.num_k, first, kPart)};
}

// Sums of dk or dv in fp32.
struct KeySums {
  TileRows<float> rows;  // first null: there are none
  bool is_slot;          // owned by this CTA: stored to; else added to

  // Stores or adds two neighbouring columns of a block.
  __device__ __forceinline__ void take(int row, int column, int inside, float first,
                                       float second) const {
    const bool is_wanted = row < rows.count && column < rows.columns;
    float* to = rows.first + row * rows.step + column + inside;
    if (!is_slot) {
      add_to_global(to, first, second, is_wanted);
    } else if (is_wanted) {
      *reinterpret_cast<float2*>(to) = {first, second};
    }
  }
};
// Where the sums of dk or dv of a CTA go, unless it writes the gradients themselves: to a slot for
// a chunk of a split list, otherwise to the shared accumulators.
template <int kTile, int kPart>
__device__ __forceinline__ KeySums key_sums(const BackwardParams& p, const Work& work,
                                            const KeyRows& keys, int part, float* slots,
                                            float* sums, int columns) {
  if (work.slot >= 0) {
    const int64_t slot = int64_t{work.head_index} * p.view.t_work.slots_per_group + work.slot;
    const int64_t row = slot * kTile + part * kPart;
    return {{slots + row * columns, columns, keys.count, columns}, true};
  }
  if (sums == nullptr) return {{nullptr, 0, 0, 0}, false};
  const int64_t row =
      (int64_t{keys.batch} * p.sizes.kv_heads + keys.head) * p.sizes.k_len + keys.key;
  return {{sums + row * columns, p.view.stride * columns, keys.count, columns}, false};
}

}  // namespace keyhole::device
