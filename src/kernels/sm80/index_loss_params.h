// src/kernels/sm80/index_loss_params.h
// What the launches of an index loss on tensor cores receive. A row is a query of a group; rows at
// hand are numbered unit * num_rows + index.
#pragma once

#include "kernels/device/index_loss_params.h"
#include "kernels/sm80/index_loss_config.h"

namespace keyhole::sm80 {

// The keys of the rows at hand, ascending.
struct LossLists {
  int32_t* keys = nullptr;    // [rows][room]
  int32_t* counts = nullptr;  // [rows]
  // [spans + 1][rows]  where the keys of a span begin (device/span_lists.h); null: not asked for
  int32_t* begin = nullptr;
  int64_t room = 0;
  int32_t spans = 0;
};

// The sums of a part of a row's keys (device/loss_sums.cuh), where several CTAs share a row.
struct LossParts {
  void* sums = nullptr;  // LossSums [rows][segments], of a loss
  float* dw = nullptr;   // [rows][segments][heads], of its gradients
  int32_t segments = 1;
};

struct LossPairs {
  device::IndexLossParams loss;
  LossHeads heads;
  LossLists lists;
  LossParts parts;
  LossMemory memory;
  // Of gradients. d_scores: the gradients of q . k, w included (mma/kept_weights.cuh).
  device::DeviceVector dloss, dw;
  char* d_scores = nullptr;  // [rows][row_tiles][room]
  int32_t row_tiles = 0;     // of 16 heads
};

}  // namespace keyhole::sm80
