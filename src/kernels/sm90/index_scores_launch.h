// src/kernels/sm90/index_scores_launch.h
#pragma once

#include "kernels/select_contract.h"

namespace keyhole::sm90 {

inline constexpr int64_t kIndexSharedBytes = 227 * 1024;
inline constexpr int64_t kIndexMostHeads = 64;  // of a group
inline constexpr int64_t kIndexMostHeadDim = 128;

// Up to kHeads index heads of a group: 16, 32 or 64. kType: e4m3, f16 or bf16.
template <DType kType, int kHeads>
void run_index_scores(const ScoreArgs& args);

}  // namespace keyhole::sm90
