// include/keyhole/selection_cost.h
// What choosing keys costs, beside dense attention: work, bytes, and the least time both can take
// on a GPU of stated rates. Arithmetic on sizes alone; nothing runs, and no GPU is needed.
//
//   explain_selection({.q_len = 131072, .k_len = 131072, .k = 2048,
//                      .q_heads = 32, .kv_heads = 8}).text()
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "keyhole/plan.h"
#include "keyhole/tensor.h"

namespace keyhole {

// One attention layer whose keys are chosen by an indexer (select.h).
struct SelectionCall {
  int64_t batch = 1, q_len = 0, k_len = 0;  // k_len: the entries of the indexer are single keys
  int64_t k = 0;                            // at most so many keys per query
  // The attention.
  int64_t q_heads = 0, kv_heads = 1;
  int64_t head_dim = 128, v_head_dim = 128;
  // Latent heads: all heads share one key of latent_dim + rope_head_dim, whose first latent_dim
  // columns are the value (kv_heads is 1). That is what a list is gathered from. Dense attention
  // may also run per head, with keys of head_dim + rope_head_dim and values of v_head_dim. 0:
  // grouped heads.
  int64_t latent_dim = 0, rope_head_dim = 64;
  DType dtype = DType::bf16;  // or f16
  // The indexer. 0 heads: there is none; the lists come from elsewhere.
  int64_t index_heads = 64, index_dim = 128;
  DType index_dtype = DType::e4m3;  // or bf16, f16
  int64_t groups = 1;               // lists of a query; they divide the kv heads evenly
  int64_t shared_by = 1;            // layers that use the lists of one indexer
  // Which keys a query may choose, and dense attention visits: a plan for [batch, groups, q_len,
  // k_len], or for one group of one batch entry, which serves all. Not given: causal.
  std::optional<Plan> visible = {};
};

// What a GPU does at best. The defaults are assumptions for an H200.
struct GpuRates {
  double flops_16bit = 790e12;  // products on tensor cores, per second
  double flops_8bit = 1500e12;
  double memory = 4.2e12;    // bytes per second out of memory
  double gathered = 8.4e12;  // bytes per second of short rows out of the cache, in any order
};

// One step: what it computes and moves, and the least time that takes.
struct SelectionStep {
  double flops = 0;
  double memory_bytes = 0;    // keys and values that are read from memory once
  double gathered_bytes = 0;  // rows of lists, each read for its own query
  double seconds = 0;         // the longest of the three at the stated rates
};

// One thing changed in the call, everything else as it is.
struct SelectionChange {
  std::string what;    // "lists shared by 4 layers"
  double speedup = 0;  // as SelectionReport::speedup
  std::optional<int64_t> wins_from;
};

// Not counted: finding the best of the scores, projections, launches. Real kernels take longer.
struct SelectionReport {
  SelectionCall call;
  GpuRates rates;
  std::string pattern;     // of the visible keys
  bool is_causal = false;  // every query sees all keys up to its own; the last query, all
  // Over batch entries and groups.
  int64_t all_pairs = 0, visible_pairs = 0, chosen_pairs = 0;
  SelectionStep indexer;         // where it runs; each of shared_by layers pays its share
  SelectionStep chosen;          // attention over the chosen keys
  SelectionStep dense;           // attention over the visible keys
  bool is_dense_latent = false;  // latent heads: dense attention is cheaper in latent form
  double choosing_seconds = 0;   // of a layer: its share of the indexer, and attention
  double speedup = 0;  // of choosing over dense attention; below 1, dense is faster; 0: no work
  // From which size choosing is faster. If is_causal, a k_len, with which q_len grows if the two
  // are equal; else how many keys each query sees. Nothing: never.
  std::optional<int64_t> wins_from;
  std::vector<SelectionChange> changes;  // what would help, where it applies

  std::string text() const;
  std::string json() const;
};

// Throws Error(usage) for sizes that do not fit.
SelectionReport explain_selection(const SelectionCall& call, const GpuRates& rates = {});

}  // namespace keyhole
