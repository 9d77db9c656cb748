// src/judge/trials.h
// The trials that `keyhole check` puts every kernel to. Each runs a kernel once on hostile inputs
// and compares with the fp64 reference.
#pragma once

#include <cstdint>
#include <span>

#include "judge/judge.h"
#include "keyhole/plan.h"

namespace keyhole::judge {

// What is asked of a kernel. When the pattern is the same for all heads, the plan's shape has one
// head and one batch entry, and the tensors have more.
struct Subject {
  Pattern pattern;
  Plan plan;
  int64_t batch, heads, kv_heads, q_len, k_len;
  int64_t head_dim, v_head_dim;
  uint64_t seed;
  Normalizer normalizer = {};
  Device gpu = {};          // where kernels of a GPU run
  bool is_aligned = false;  // every row begins at a multiple of 16 bytes
};

struct Trial {
  const char* name;
  Operation operation;
  Finding (*run)(const KernelEntry& kernel, TileShape tile, const Subject& subject);
  bool has_softcap = false;
  bool is_for_sparse = false;  // only for kernels of entmax and top_k
};

std::span<const Trial> trials();
inline bool suits(const Trial& trial, const KernelEntry& kernel) {
  return trial.operation == kernel.operation &&
         (!trial.is_for_sparse || kernel.weights == Weights::sparse);
}

// Sequences longer than this are compared on a sample of their queries, forward only.
inline constexpr int64_t kLongestFullyChecked = 1024;

}  // namespace keyhole::judge
