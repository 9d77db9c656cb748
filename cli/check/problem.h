// cli/check/problem.h
// The tensors of one trial, and a kernel that runs on them.
#pragma once

#include <vector>

#include "cli/check/hostile.h"
#include "cli/check/trials.h"
#include "keyhole/attention.h"

namespace keyhole::cli {

struct Problem {
  Problem(const Subject& subject, const KernelEntry& kernel);
  void randomise();  // q, k, v, dout; keys that nobody attends to become NaN
  void use_softcap_and_sinks();
  // From now on calls write or read the keys that have weight, 64 numbers of 32 bits a query.
  void use_support() { has_support = true; }
  int32_t* support_of(int64_t b, int64_t h, int64_t query) {
    return support_rows().row(b, h, query);
  }
  Answer answer();
  bool attends(int64_t b, int64_t h, int64_t query, int64_t key) const;  // asks the pattern
  // The flat index of the first element of a row of q, out, dout (by query head) or k, v (by key
  // head).
  int64_t q_row(int64_t b, int64_t h, int64_t i) const {
    return (b * subject.heads + h) * subject.q_len + i;
  }
  int64_t k_row(int64_t b, int64_t h, int64_t i) const {
    return (b * subject.kv_heads + h) * subject.k_len + i;
  }

  void run_forward(TileShape tile);
  void run_backward(TileShape tile);  // out and lse must be filled

  const Subject& subject;
  const KernelEntry& kernel;
  DType dtype;
  Random random;
  std::vector<HeadPattern> patterns;  // [batch * heads]
  HostileTensor q, k, v, out, lse, dout, dq, dk, dv, sink, dsink;
  HostileTensor support;  // int32 in the places of f32
  bool has_support = false, has_equal_terms = false;
  AttentionOptions options;

 private:
  SupportRows support_rows() const { return support_rows(support.view()); }
  static SupportRows support_rows(const TensorView& view);
};

// What nobody may write to is as it was.
void expect_intact(Finding& finding, const Problem& problem);

}  // namespace keyhole::cli
