// src/kernels/sm90/tma_tensors.h
// How TMA sees q, k, v or out: as a tensor of five dimensions
//
//   (column, row of its class, class, head, batch)
//
// that is read or written in boxes of 64 columns x some rows. In residue space (a part of stride s)
// row i of the class that begins at index `first` is index first + s * i of the tensor; a plain
// part has one class of stride 1. Nothing is copied: the strides say it.
//
// Classes differ by at most one row, and TMA knows one number of rows for all of them: so there are
// two such tensors, one of the classes that have one row more, one of the others. What lies beyond
// the last row of a class is never read and arrives as zeros, and so are columns beyond head_dim.
//
//   stride 3, 8 rows      longer: classes 0 (0 3 6) and 1 (1 4 7)      shorter: class 2 (2 5)
//
// Plain host code, without CUDA: tensor_maps.cu makes the driver's objects of it.
#pragma once

#include <cstdint>
#include <string>

#include "keyhole/tensor.h"

namespace keyhole::sm90 {

inline constexpr int kBoxDims = 5;
inline constexpr int kBoxColumns = 64;  // 128 bytes, the width of the swizzle
inline constexpr int kWarpRows = 16;    // of a product, that a warp holds

// Every row of `classes` classes. Dimensions are never 0: one that has no rows is given one that
// no coordinate meets, see TmaTensors.
struct TmaTensor {
  const void* base = nullptr;
  uint64_t dims[kBoxDims] = {1, 1, 1, 1, 1};
  uint64_t strides[kBoxDims - 1] = {16, 16, 16, 16};  // of dims 1 to 4, in bytes
};

// Class `first` has coordinate first - longer_origin in `longer` if first < num_longer, else
// first - shorter_origin in `shorter`. Where there is no row at all that coordinate lies outside.
struct TmaTensors {
  TmaTensor longer, shorter;
  int32_t num_longer = 0;
  int32_t longer_origin = 0, shorter_origin = 0;
};

// tensor: [batch, heads, length, head_dim], as why_no_tma accepts it. `stride` residue classes.
TmaTensors tma_tensors(const TensorView& tensor, int32_t stride);

// In words, why TMA cannot read or write the rows of a tensor in place; empty when it can. That
// they begin at multiples of 16 bytes is Request::is_aligned.
std::string why_no_tma(const TensorView& tensor);

}  // namespace keyhole::sm90
