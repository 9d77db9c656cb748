// include/keyhole/select.h
// Keys chosen from data: an indexer scores every key for every query, the best k are kept, and
// attention runs on them alone (attention.h, with the chosen keys as its index tensor).
//
//   select_keys(index_q, index_k, {.w = w}, {.indices = chosen}, {.k = 2048, .visible = causal});
//   attention_forward(q, k, v, chosen, out, lse);
//   index_loss_forward(...), index_loss_backward(...): the indexer learns what attention looks at
//
// An entry is what the indexer scores: a key, or several keys that were pooled into one. Query
// heads of the indexer are divided evenly among the groups, and each group has one list per query.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "keyhole/attention.h"
#include "keyhole/lists.h"
#include "keyhole/plan.h"
#include "keyhole/tensor.h"
#include "keyhole/workspace.h"

namespace keyhole {

// The score of entry s for query t:
//   k_scale[s] * sum over the index heads j of the group of  w[t, j] * max(q[t, j] . k[s], 0)
// Products and sums are fp32 (fp64 for f64). If w or k_scale is not given, it is 1. A score that
// NaN enters is NaN.
struct IndexerView {
  TensorView q;       // [batch, index_heads, q_len, head_dim]: f32, bf16, f16, e4m3 or f64
  TensorView k;       // [batch, groups, entries, head_dim]: dtype of q
  TensorView w = {};  // optional, [batch, index_heads, q_len] f32 (f64 for f64); of either sign
  TensorView k_scale = {};  // optional, [batch, groups, entries] f32 (f64 for f64)
};

// What a selection writes.
struct Selection {
  // int32 [batch, groups, q_len, >= k]: the chosen entries, ascending, then -1 to the end.
  IndexView indices;
  IndexView counts = {};  // optional, int32 [batch, groups, q_len, 1]: how many were chosen
};

struct SelectOptions {
  int64_t k = 0;  // at most so many entries per query; at least 1
  // Which entries a query may choose: a plan for [batch, groups, q_len, entries]. Not given: all.
  std::optional<Plan> visible = {};
  // Entries that are chosen before any other, if they are visible and whatever their score.
  std::optional<Plan> always = {};
  std::string backend = "auto";     // select_keys: one that has both steps, such as cpu or simple
  int threads = 0;                  // cpu: at most this many; 0: all the machine has
  void* stream = nullptr;           // GPU
  AllocateWorkspace allocate = {};  // GPU: provides scratch memory (keyhole/workspace.h)
};

// scores [batch, groups, q_len, entries], f32 (f64 for f64); -inf where an entry is not visible.
void index_scores(const IndexerView& indexer, const TensorView& scores,
                  const SelectOptions& options = {});

// The best visible entries of each row of scores (f32, f16, bf16 or f64; [batch, groups, q_len,
// entries]): those of `always`, then by score, the highest first; of equal scores the lowest entry,
// and the lowest of `always` if it has more than k. -0 equals 0. NaN and -inf are never chosen,
// except by `always`. The same lists for the same bits, on every backend and on every run.
void top_k(const TensorView& scores, const Selection& selection, const SelectOptions& options);

// top_k of index_scores, without an array of all scores: their memory does not grow with q_len
// beyond 512 MiB. A row with at most k visible entries takes them all, whatever their scores.
void select_keys(const IndexerView& indexer, const Selection& selection,
                 const SelectOptions& options);

// The attention that an indexer learns from: its weights are the target. q and k are those of the
// attention; lse is what it returned, with its sinks and all other keys that share the softmax.
struct AttentionTarget {
  TensorView q;    // [batch, q_heads, q_len, head_dim]
  TensorView k;    // [batch, kv_heads, k_len, head_dim]
  TensorView lse;  // [batch, q_heads, q_len]
  std::optional<double> scale = {};
  double softcap = 0;
  // Entry e of the indexer stands for keys r e to r e + r - 1, as far as k has them.
  int64_t keys_per_entry = 1;
};

// How far the indexer is from what attention looks at: for every query and group
//   loss = sum over the listed entries of  p * (log p - log softmax(score))
// p: exp(attention score - lse), summed over the query heads of the group and over the listed keys
// of the entry, and divided by its sum over the list. lists: those of the attention, in keys: a
// plan for all visible ones (dense warm-up), or the selected ones, in which -1 is padding and no
// key is listed twice. An entry is listed if any of its keys is. A query without keys has loss 0
// and statistics -inf and 0. Nothing of size q_len x k_len is stored.
//   loss  [batch, groups, q_len]: written; f32 (f64 for f64)
//   stats [batch, groups, q_len, 2]: written, for the backward pass: log of the sum of
//         exp(score), and the sum that p is divided by
// rows: optional, int32 [1, 1, 1, n]: only these queries, ascending; the others are as without
// keys.
struct IndexLossOptions {
  IndexView rows = {};
  bool deterministic = false;
  std::string backend = "auto";
  int threads = 0;
  void* stream = nullptr;
  AllocateWorkspace allocate = {};
};
void index_loss_forward(const IndexerView& indexer, const AttentionTarget& target,
                        const Lists& lists, const TensorView& loss, const TensorView& stats,
                        const IndexLossOptions& options = {});

// dloss [batch, groups, q_len]. Gradients have the shapes of q, k, w and the dtypes of q, k and w;
// e4m3 has none. The target gets no gradient.
struct IndexGradients {
  TensorView dq, dk;
  TensorView dw = {};  // only if w is given
};
void index_loss_backward(const TensorView& dloss, const IndexerView& indexer,
                         const AttentionTarget& target, const Lists& lists, const TensorView& stats,
                         const IndexGradients& gradients, const IndexLossOptions& options = {});

// Which kernels a selection would use: "cpu.select_keys.bf16" for both steps at once, or
// "sm90.index_scores.bf16 and sm80.top_k.f32, 896 queries at a time". Tensors need no memory.
std::string kernel_for_selection(const IndexerView& indexer, const SelectOptions& options);

}  // namespace keyhole
