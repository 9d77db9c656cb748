// src/kernels/device/index_scores.h
// What the kernels of index_scores receive: the indexer, and the rows of scores of some queries.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/params.h"
#include "kernels/device/row_bits.h"
#include "kernels/select_contract.h"

namespace keyhole::device {

struct IndexScoreParams {
  DeviceTensor q;                            // (batch, head, query)
  DeviceTensor k;                            // (batch, group, entry)
  DeviceVector w;                            // element (batch, head, query); data null: all are 1
  DeviceVector k_scale;                      // element (batch, group, entry); data null: all are 1
  DeviceTensor scores;                       // (batch, group, query - first_query)
  int32_t batch = 0, groups = 0, heads = 0;  // heads: of a group
  int32_t head_dim = 0;
  int64_t first_query = 0, num_queries = 0, q_len = 0, entries = 0;
  RowBits visible;            // of these queries; may be not given
  bool only_visible = false;  // other scores need not be written

  constexpr int32_t head_of(int32_t group, int32_t j) const { return group * heads + j; }
};

// The memory for the bits of a call's plan.
int64_t index_score_bits_bytes(const ScoreArgs& args);

// Queues the drawing of the bits into the workspace.
IndexScoreParams index_score_params(const ScoreArgs& args);

}  // namespace keyhole::device
