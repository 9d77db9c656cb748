// src/kernels/sm90/tma_tensors.h
// How TMA sees q, k, v or out: as a tensor of five dimensions
//
//   (column, row of its class, class, head, batch)
//
// that is read or written in boxes of 64 columns x some rows. In residue space (a part of stride
// s), row i of the class that begins at index `first` is row first + s * i of the original tensor.
// A plain part has one class of stride 1. Strides express all of this; nothing is copied.
//
// Class lengths differ by at most one row, but a TMA tensor has one number of rows for all classes.
// So there are two tensors: one for the longer classes, one for the others. Rows past the end of a
// class and columns past head_dim are not read; they arrive as zeros.
//
//   stride 3, 8 rows      longer: classes 0 (0 3 6) and 1 (1 4 7)      shorter: class 2 (2 5)
//
// Plain host code without CUDA; tensor_maps.cu makes CUtensorMaps of it.
#pragma once

#include <cstdint>
#include <string>

#include "keyhole/tensor.h"

namespace keyhole::sm90 {

inline constexpr int kBoxDims = 5;
inline constexpr int kBoxColumns = 64;  // 128 bytes, the width of the swizzle
inline constexpr int kWarpRows = 16;    // rows of a product that one warp holds
inline constexpr int kWarpgroupRows = 64;

// All rows of some classes of equal length. Dimensions are never 0: a tensor without rows gets one
// row that no coordinate reaches (see TmaTensors).
struct TmaTensor {
  const void* base = nullptr;
  uint64_t dims[kBoxDims] = {1, 1, 1, 1, 1};
  uint64_t strides[kBoxDims - 1] = {16, 16, 16, 16};  // of dims 1 to 4, in bytes
};

// The coordinate of class `first` is first - longer_origin in `longer` if first < num_longer, else
// first - shorter_origin in `shorter`. If the tensor has no rows, that coordinate is out of bounds.
struct TmaTensors {
  TmaTensor longer, shorter;
  int32_t num_longer = 0;
  int32_t longer_origin = 0, shorter_origin = 0;
};

// tensor: [batch, heads, length, head_dim], accepted by why_no_tma. stride: number of residue
// classes.
TmaTensors tma_tensors(const TensorView& tensor, int32_t stride);

// Why TMA cannot read or write the rows of a tensor in place, as text; empty when it can. The
// 16-byte alignment of rows is checked elsewhere: Request::is_aligned.
std::string why_no_tma(const TensorView& tensor);

}  // namespace keyhole::sm90
