// src/reference/select.h
// Selections by their definitions: scores, the best entries, the index loss and its gradients. All
// in fp64, pair by pair; what is allowed is asked of a function, never of a plan.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "keyhole/select.h"

namespace keyhole {

// Whether a query may have an entry. An empty function: always, or never for `always`.
using EntryPredicate =
    std::function<bool(int64_t batch, int64_t group, int64_t query, int64_t entry)>;

// [batch, groups, q_len, entries]; -inf where an entry is not visible.
std::vector<double> reference_index_scores(const IndexerView& indexer,
                                           const EntryPredicate& visible = {});

struct ReferenceSelection {
  std::vector<std::vector<int32_t>> rows;  // [batch * groups * q_len], ascending
};
// takes_short_rows: a row with at most k visible entries takes them all, as in select_keys.
ReferenceSelection reference_top_k(const TensorView& scores, int64_t k,
                                   const EntryPredicate& visible = {},
                                   const EntryPredicate& always = {},
                                   bool takes_short_rows = false);

struct ReferenceIndexLoss {
  std::vector<double> loss;    // [batch, groups, q_len]
  std::vector<double> stats;   // [batch, groups, q_len, 2]
  std::vector<double> dq, dk;  // shapes of q and k, for the given dloss
  std::vector<double> dw;      // [batch, index_heads, q_len], also if w is not given
};
// listed: the lists, in keys of the target. dloss [batch, groups, q_len].
ReferenceIndexLoss reference_index_loss(const IndexerView& indexer, const AttentionTarget& target,
                                        const EntryPredicate& listed,
                                        const std::vector<double>& dloss);

}  // namespace keyhole
