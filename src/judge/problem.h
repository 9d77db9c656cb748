// src/judge/problem.h
// The tensors of one trial, and a kernel that runs on them.
#pragma once

#include <vector>

#include "base/random.h"
#include "judge/device_copies.h"
#include "judge/trials.h"

namespace keyhole::judge {

struct Problem {
  Problem(const Subject& subject, const KernelEntry& kernel);
  void randomise();  // q, k, v, dout; keys to which no query attends become NaN
  void use_softcap_and_sinks();
  // From now on calls write or read the keys that have weight, 64 numbers of 32 bits a query.
  void use_support() { has_support = true; }
  int32_t* support_of(int64_t b, int64_t h, int64_t query) {
    return support_rows().row(b, h, query);
  }
  void spoil_key(int64_t row);  // NaN in k and v
  Answer answer() const;
  bool attends(int64_t b, int64_t h, int64_t query, int64_t key) const;  // asks the pattern
  // The number of a row of k and v.
  int64_t k_row(int64_t b, int64_t h, int64_t i) const {
    return (b * subject.kv_heads + h) * subject.k_len + i;
  }

  void run(TileShape tile);  // before a backward pass, out and lse must be filled
  // Memory that no kernel may write is unchanged.
  void expect_intact(Finding& finding) const;

  const Subject& subject;
  const KernelEntry& kernel;
  Random random;
  std::vector<HeadPattern> patterns;  // [batch * heads]
  InputTensors<PoisonedTensor> in;
  OutputTensors<PoisonedTensor> o;
  PoisonedTensor support;  // int32 in the places of f32
  bool has_support = false, has_equal_terms = false;
  AttentionOptions options;

 private:
  void fill_normal(PoisonedTensor& tensor);
  CallTensors on_device(DeviceCopies& copies);
  SupportRows support_rows() const { return support_rows(support.view()); }
  static SupportRows support_rows(const TensorView& view);
};

}  // namespace keyhole::judge
