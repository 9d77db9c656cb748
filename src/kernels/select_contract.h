// src/kernels/select_contract.h
// What kernels that select keys receive, and their table. The API has checked every tensor: ranks,
// sizes and dtypes match each other, lengths match the plans. A row is one query of one group.
#pragma once

#include <climits>
#include <cstdint>
#include <string>
#include <vector>

#include "base/weight_rule.h"
#include "kernels/contract.h"
#include "keyhole/tensor.h"
#include "plan/view.h"

namespace keyhole {

// Queries [first, first + count) of every group. Selections are made so many at a time.
struct QueryRange {
  int64_t first = 0, count = 0;
};

// index_scores. scores holds the rows of `queries` alone: [batch, groups, queries.count, entries].
struct ScoreArgs {
  TensorView q, k, w, k_scale;  // w, k_scale: may be not given
  TensorView scores;
  QueryRange queries;
  // Null: every entry. Entries that are not visible get -inf, or keep what they had if
  // only_visible: a kernel may then skip tiles.
  const PlanView* visible = nullptr;
  bool only_visible = false;
  int threads = 0;
  Launch launch;
};

// top_k. scores: as above; only visible entries are read.
struct TopKArgs {
  TensorView scores;
  QueryRange queries;
  int64_t k = 0;
  int32_t* indices = nullptr;  // [batch, groups, q_len, columns], rows contiguous
  int64_t columns = 0, batch_stride = 0, group_stride = 0, row_stride = 0;
  int32_t* counts = nullptr;  // may be null
  int64_t counts_batch_stride = 0, counts_group_stride = 0, counts_row_stride = 0;
  const PlanView* visible = nullptr;  // null: every entry
  const PlanView* always = nullptr;   // null: none
  // A row with at most k visible entries takes them all and does not read their scores.
  bool takes_short_rows = false;
  int threads = 0;
  Launch launch;
};

// The index loss and its statistics. lists: their group_of is for [batch * groups].
struct IndexLossArgs {
  TensorView q, k, w, k_scale;                // of the indexer, as above
  TensorView target_q, target_k, target_lse;  // of the attention
  WeightRule rule;                            // of the attention
  int64_t keys_per_entry = 1;                 // keys of target_k that an entry of k stands for
  PlanView lists;                             // of keys
  TensorView loss, stats;                     // the gradients read stats alone
  // If has_rows, the queries that count, ascending; else all. The others have loss 0 and no
  // gradient.
  bool has_rows = false;
  const int32_t* rows = nullptr;
  int64_t num_rows = 0;
  int threads = 0;
  Launch launch;
};
// Whether each query has a list of its own: an index tensor.
inline bool lists_alone(const IndexLossArgs& args) {
  const auto& gathers = args.lists.gathers;
  return args.lists.tiles.empty() && gathers.size() == 1 && gathers[0].table.is_given();
}
struct IndexGradientArgs {
  IndexLossArgs loss;
  TensorView dloss;
  TensorView dq, dk, dw;  // dw: may be not given
};

enum class SelectOperation : uint8_t { scores, top_k, select, loss, gradients };
// "index_scores", "top_k", "select_keys", "index_loss_forward", "index_loss_backward"
const char* to_string(SelectOperation operation);

struct SelectRequest {
  std::string backend;  // "auto" or a backend's name
  SelectOperation operation = SelectOperation::scores;
  DType dtype = DType::f32;  // of q and k, or of the scores
  Device device = {};
  int compute_capability = 0;
  int64_t index_heads = 0, groups = 0, head_dim = 0, entries = 0, k = 0;
  bool deterministic = false;  // gradients: the same bits every time
  // Of the attention that an index loss is about.
  DType target_dtype = DType::f32;
  int64_t target_heads = 0, target_dim = 0, keys_per_entry = 1;
  bool is_aligned = true;
  std::string why_no_tma = {};
};

// One row of the table. The first without an objection runs.
struct SelectKernel {
  std::string name;     // backend.operation.dtype
  std::string backend;  // "cpu", "simple", "sm80", "sm90"
  Device::Kind device = Device::Kind::cpu;
  SelectOperation operation;
  DType dtype;
  void (*scores)(const ScoreArgs& args) = nullptr;  // null unless operation == scores
  void (*top_k)(const TopKArgs& args) = nullptr;    // null unless operation == top_k
  // Both at once, with the same lists as from the two kernels. The scores have a shape, no memory.
  void (*select)(const ScoreArgs& scores, const TopKArgs& choice) = nullptr;
  void (*loss)(const IndexLossArgs& args) = nullptr;
  void (*gradients)(const IndexGradientArgs& args) = nullptr;
  // The scratch memory of a call, in bytes; null: none. They read no memory of a GPU.
  int64_t (*scores_workspace)(const ScoreArgs& args) = nullptr;
  int64_t (*top_k_workspace)(const TopKArgs& args) = nullptr;
  int64_t (*select_workspace)(const ScoreArgs& scores, const TopKArgs& choice) = nullptr;
  int64_t (*loss_workspace)(const IndexLossArgs& args) = nullptr;
  int64_t (*gradients_workspace)(const IndexGradientArgs& args) = nullptr;
  // The tiles of its plans, and the layout of their bitmaps.
  TileShape tile = {64, 128};
  BitmapLayout bitmaps = BitmapLayout::row_major;
  int min_compute_capability = 0;
  int max_compute_capability = INT_MAX;
  // How far a product q . k may be off beside rounding in fp32: this times the sum of the sizes of
  // its terms. Tensor cores add products of 8-bit numbers with fewer bits.
  double product_error = 0;
  // Tensor cores: gradients of scores are rounded to the dtype before they are multiplied.
  bool rounds_gradients = false;
  std::string (*objection)(const SelectRequest& request) = nullptr;  // null: none
};

}  // namespace keyhole
