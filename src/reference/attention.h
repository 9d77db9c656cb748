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

// `offset`: the position of query 0, k_len - q_len when not given.
ReferenceOutput reference_forward(const Pattern& pattern, const TensorView& q, const TensorView& k,
                                  const TensorView& v, const AttentionOptions& options = {},
                                  std::optional<int64_t> offset = {});
// Only the given queries, for long sequences: row i of the result is query queries[i].
ReferenceOutput reference_forward_rows(const Pattern& pattern, const TensorView& q,
                                       const TensorView& k, const TensorView& v,
                                       const std::vector<int64_t>& queries,
                                       const AttentionOptions& options = {},
                                       std::optional<int64_t> offset = {});
// out and lse are computed here, in fp64; they are not arguments.
ReferenceGradients reference_backward(const Pattern& pattern, const TensorView& dout,
                                      const TensorView& q, const TensorView& k, const TensorView& v,
                                      const AttentionOptions& options = {},
                                      std::optional<int64_t> offset = {});

}  // namespace keyhole
