// cli/check/problem.h
// The tensors of one trial, and the comparison of what a kernel made of them with what it should
// be.
#pragma once

#include <string>
#include <vector>

#include "cli/check/hostile.h"
#include "cli/check/trials.h"
#include "keyhole/attention.h"
#include "reference/attention.h"

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
  bool has_support = false;
  AttentionOptions options;

 private:
  SupportRows support_rows() const { return support_rows(support.view()); }
  static SupportRows support_rows(const TensorView& view);
};

// A result beside what it should be: `rough` is what the reference gives for inputs disturbed by
// rounding, and so tells how much rounding may cost on this very input.
struct Comparison {
  const char* name;
  std::vector<double> got, want, rough;
  double rounding;  // of the result's dtype
};
Finding compare(const std::vector<Comparison>& results);
// One number beside what it should be. `where` is called only to complain: texts cost more than the
// comparison.
bool is_worse(Finding& finding, double got, double want, double allowed);  // then finding holds it
void complain(Finding& finding, double got, double want, const std::string& where);
template <class Where>
void expect(Finding& finding, double got, double want, double allowed, Where&& where) {
  if (is_worse(finding, got, want, allowed)) complain(finding, got, want, where());
}
void expect_intact(Finding& finding, const Problem& problem);

// q, k, v and dout in fp64, each number off by up to `relative`.
struct Disturbed {
  Disturbed(const Problem& problem, double relative);
  std::vector<double> q, k, v, dout;
  TensorView q_view, k_view, v_view, dout_view;
};
// The `rough` of a comparison where keys may gain or lose their weight by rounding: of two that
// were disturbed to either side, each number that is farther from what it should be.
std::vector<double> farther(const std::vector<double>& want, std::vector<double> rough,
                            const std::vector<double>& other);
// How far the numbers a kernel works with are from exact, as a share of each of them.
double working_precision(const KernelEntry& kernel, Operation operation, const Subject& subject);

}  // namespace keyhole::cli
