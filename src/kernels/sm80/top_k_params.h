// src/kernels/sm80/top_k_params.h
// top_k in three launches, and what passes between them:
//
//   bound     a sample of a row gives a bound that somewhat more than k of its scores are above
//   collect   the row is read once; scores that reach the bound go to its list
//   finish    the best k of the list, in order
//
// A bound is a guess. A row whose list has too few scores, or more than it has room for, is done by
// digits instead (device/top_k_by_digits.h).
#pragma once

#include "kernels/device/top_k_rows.h"

namespace keyhole::sm80 {

inline constexpr int32_t kTopKSample = 4096;
inline constexpr int32_t kMostListed = 8192;

struct RowState {
  float bound;      // -FLT_MAX: every score that can be chosen
  int32_t takes;    // device::Takes
  int32_t rank;     // how many are chosen by score
  uint32_t listed;  // scores that reach the bound; more than have room, perhaps
};
static_assert(sizeof(RowState) == 16);

struct TopKParams {
  device::TopKRows rows;
  RowState* states = nullptr;  // [num_rows]
  int32_t* is_left = nullptr;  // [num_rows]  1: by digits
  // [num_rows][capacity]: ordered bits of the score, then the complement of the entry, so that the
  // larger of two is the better one.
  uint64_t* lists = nullptr;
  int32_t capacity = 0;
  int32_t segments = 1;  // of a row, each read by a CTA
  int64_t segment_entries = 0;
  bool in_vectors = false;  // every row begins at a multiple of 16 bytes
};

// Room for the lists of rows this long: well above what is expected.
int64_t top_k_capacity(int64_t k, int64_t entries);

int64_t top_k_workspace(const TopKArgs& args);
template <DType kType>
void run_top_k(const TopKArgs& args);

}  // namespace keyhole::sm80
