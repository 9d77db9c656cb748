// src/kernels/device/entmax_params.h
// What the launches of entmax and top_k share, on every GPU backend: plain structs, by value; every
// pointer is a device pointer.
//
//   round     (mma/entmax_round.cu)        fp32: q and k in bf16, for the scan
//   scan      (sm80, sm90/entmax_scan.cuh) q . k over tile lists: the keys of each row that may
//             have weight
//   solve     (mma/entmax_solve.cu)        lambda on that list; the support; the values of the
//             support. fp32: their products first
//   tiles     (sm90/entmax_tiles.cuh)      many neighbouring rows that the scan left alone: lambda
//             and output by passes over tile lists
//   rest      (entmax_left_rows.cu)        the rows that are still left alone, a CTA each
//   rows      (entmax_rows.cu)             all rows, a warp each, where no scan was made
#pragma once

#include "base/entmax.h"
#include "base/rounded_rows.h"
#include "kernels/device/exact_backward.cuh"
#include "kernels/device/params.h"

namespace keyhole::device {

// A key that may have weight.
struct alignas(8) Candidate {
  float product;  // q . k, before softcap and scale
  int32_t key;
};

// What a scan found, in any order. Row r is (batch * heads + head) * q_len + query. The list has
// every key of the row that has weight, and may have others.
struct CandidateLists {
  Candidate* entries = nullptr;   // [rows][capacity]
  int32_t* count = nullptr;       // [rows]; kAlone: the row is left to entmax_left_rows.cu
  float* lambda_bound = nullptr;  // [rows]  lambda of all keys is not below it; -inf: not known
  int32_t* num_left = nullptr;    // [1]     rows that the scan left alone, for a launch over tiles
  int32_t capacity = 0;
};
inline constexpr int32_t kAlone = -1;

// q and k of fp32, rounded to bf16 for a scan. Its products are those of rounded rows
// (base/rounded_rows.h), and so are those of the candidates.
struct RoundedRows {
  DeviceTensor q, k;
  float* margin = nullptr;        // [rows]  how far products of the row may be off; +inf: unknown
  LargestKey* largest = nullptr;  // [batch * kv_heads]  of the keys that are finite
};

struct EntmaxParams {
  Sizes sizes;
  DeviceTensor q, k, v, out;
  DeviceVector lse;             // lambda of each row; data null: not requested
  const float* sink = nullptr;  // [heads], or null: one more score of every row, without a value
  int64_t sink_stride = 1;
  EntmaxPower power;
  int64_t top_k = 0;          // 0: all keys take part
  DeviceTensor support;       // int32 rows of kSupportKeys (normalizer.h); data null: not requested
  DevicePlan plan;            // all parts
  CandidateLists candidates;  // null pointers: no scan was made
};

}  // namespace keyhole::device
