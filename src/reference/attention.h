// src/reference/attention.h
// The reference: attention in fp64 by definition, asking the pattern pair by pair. It never sees a
// plan, so that an error in the compiler cannot hide in both.
#pragma once

#include <vector>

#include "keyhole/attention.h"

namespace keyhole {

struct ReferenceOutput {
  std::vector<double> out;  // [batch, q_heads, q_len, v_head_dim]
  std::vector<double> lse;  // [batch, q_heads, q_len]; lambda for entmax
};
struct ReferenceGradients {
  std::vector<double> dq, dk, dv;  // shapes of q, k, v
  std::vector<double> dsink;       // [q_heads]; empty without a sink
  double dalpha = 0;               // of entmax, alpha > 1; else 0
};

// Numbers that are off, as rounding may have them: each by up to `relative` of itself, the same way
// every time. What a result moves by tells how much rounding may cost on this very input.
struct Disturbance {
  double relative = 0;
  uint64_t seed = 0;
};

// `offset`: the position of query 0, k_len - q_len when not given. Heads run on options.threads.
ReferenceOutput reference_forward(const Pattern& pattern, const TensorView& q, const TensorView& k,
                                  const TensorView& v, const AttentionOptions& options = {},
                                  std::optional<int64_t> offset = {});
// Only the given queries, for long sequences: row i of the result is query queries[i].
ReferenceOutput reference_forward_rows(const Pattern& pattern, const TensorView& q,
                                       const TensorView& k, const TensorView& v,
                                       const std::vector<int64_t>& queries,
                                       const AttentionOptions& options = {},
                                       std::optional<int64_t> offset = {},
                                       const Disturbance& disturbance = {});
// out and lse are computed here, in fp64; they are not arguments.
ReferenceGradients reference_backward(const Pattern& pattern, const TensorView& dout,
                                      const TensorView& q, const TensorView& k, const TensorView& v,
                                      const AttentionOptions& options = {},
                                      std::optional<int64_t> offset = {});
// As if dout were 0 but at the given queries; dq has their rows alone.
ReferenceGradients reference_backward_rows(const Pattern& pattern, const TensorView& dout,
                                           const TensorView& q, const TensorView& k,
                                           const TensorView& v, const std::vector<int64_t>& queries,
                                           const AttentionOptions& options = {},
                                           std::optional<int64_t> offset = {},
                                           const Disturbance& disturbance = {});

// One query of one head, and the keys it attends to.
struct ReferenceRow {
  std::vector<int64_t> keys;  // ascending
  std::vector<double> scores, weights;
  double lse = 0;  // lambda for entmax
};
ReferenceRow reference_row(const Pattern& pattern, const TensorView& q, const TensorView& k,
                           int64_t batch, int64_t head, int64_t query,
                           const AttentionOptions& options = {},
                           std::optional<int64_t> offset = {});

}  // namespace keyhole
