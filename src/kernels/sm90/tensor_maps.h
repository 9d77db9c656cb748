// src/kernels/sm90/tensor_maps.h
// Tensor maps: how TMA reads q, k, v and dout, and how it writes out, dk and dv. They are made on
// the host for every launch (0.2 us each) and passed to the kernel by value. Nothing outlives the
// launch, and a CUDA graph keeps its own copy.
#pragma once

#include <cuda.h>  // types; nothing of libcuda is linked

#include <cstdint>

#include "kernels/device/index_scores.h"
#include "kernels/device/params.h"
#include "kernels/sm90/tma_tensors.h"

namespace keyhole::sm90 {

// The rows of one class of one head. The TMA coordinates are (column, row of the class, class_at,
// head, batch).
struct ClassRows {
  const CUtensorMap* map;
  int32_t class_at;
};

// All rows of a tensor (tma_tensors.h). In shared memory a box of 64 columns is rows of 128 bytes
// in the 128-byte swizzle.
struct RowMaps {
  CUtensorMap longer, shorter;
  int32_t num_longer;
  int32_t longer_origin, shorter_origin;

  // first: ResidueClass::first_q or first_k, 0 in a plain part.
  __device__ const CUtensorMap* map_of_class(int32_t first) const {
    return first < num_longer ? &longer : &shorter;
  }
  __device__ ClassRows of_class(int32_t first) const {
    return {map_of_class(first), first - (first < num_longer ? longer_origin : shorter_origin)};
  }
};

// A kernel parameter, `const __grid_constant__ ForwardMaps maps`: TMA reads a map at its address.
struct ForwardMaps {
  RowMaps q, k, v;
  RowMaps out;  // in boxes of one warp's rows
};
struct EntmaxMaps {
  RowMaps q, k, v;
};
struct BackwardMaps {
  RowMaps q, dout, k, v;
  RowMaps dk, dv;  // in boxes of one warpgroup's rows
};

// dtype: f16 or bf16. A box of q or dout has q_rows rows, one of k and v has k_rows; at most 256.
RowMaps key_maps(const device::Sizes& sizes, const device::DeviceTensor& k, DType dtype,
                 int32_t stride, int k_rows);
RowMaps value_maps(const device::Sizes& sizes, const device::DeviceTensor& v, DType dtype,
                   int32_t stride, int k_rows);
EntmaxMaps entmax_maps(const device::Sizes& sizes, const device::DeviceTensor& q,
                       const device::DeviceTensor& k, const device::DeviceTensor& v, DType dtype,
                       int32_t stride, int q_rows, int k_rows);
ForwardMaps forward_maps(const device::ForwardParams& params, DType dtype, int q_rows, int k_rows);
// The tensors of an indexer. A box of q is `queries` queries, each with `heads` heads of one group;
// heads past those of the group arrive as zeros. A box of k is `entries` of a group. Both are rows
// of 128 bytes in the 128-byte swizzle. Coordinates of q: (column, head, group, query, batch); of
// k: (column, entry, group, batch, 0).
struct IndexMaps {
  CUtensorMap q, k;
};
IndexMaps index_maps(const device::IndexScoreParams& params, DType dtype, int queries, int heads,
                     int entries);
BackwardMaps backward_maps(const device::BackwardParams& params, DType dtype, int q_rows,
                           int k_rows);

}  // namespace keyhole::sm90
