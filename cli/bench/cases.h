// cli/bench/cases.h
// One thing to measure: a pattern, the shapes and dtype of its tensors, forward or backward or
// both. And case files: one case a line, as bench/cases/*.txt explain themselves.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/contract.h"
#include "keyhole/normalizer.h"
#include "keyhole/pattern.h"
#include "keyhole/tensor.h"

namespace keyhole::bench {

struct Case {
  std::string name;
  Pattern pattern = dense();
  std::string pattern_text;  // what a table shows: pattern.text(), or a short form of long arrays
  int64_t q_len = 0, k_len = 0;
  int64_t heads = 1, kv_heads = 1;
  int64_t head_dim = 64;
  DType dtype = DType::f32;
  Operation operation = Operation::forward;
  bool has_forward_too = false;  // with operation backward: both passes are timed together
  bool has_nan = false;          // the first value, of a key to which no query attends
  Normalizer normalizer = {};    // softmax, entmax, top_k
  Device device = {};            // where the tensors lie, and so what computes

  Shape shape() const {
    return {.batch = 1, .heads = heads, .q_len = q_len, .k_len = k_len, .offset = {}};
  }
  double all_pairs() const { return double(heads) * double(q_len) * double(k_len); }
  bool does_forward() const { return operation == Operation::forward || has_forward_too; }
  bool does_backward() const { return operation == Operation::backward; }
  bool is_sparse() const { return !normalizer.is_plain_softmax(); }
};

// The case with another pattern.
inline Case with_pattern(Case c, const Pattern& pattern, std::string text) {
  c.pattern = pattern;
  c.pattern_text = std::move(text);
  return c;
}

// Multiplications and additions that a pair of a head costs: two products of head_dim forward, five
// backward (scores again, dv, dp, dq, dk). With entmax and top_k every pair costs its score, and
// only those that keep weight cost more; how many they are is not known here.
inline double flops_per_pair(const Case& c) {
  if (c.is_sparse()) return c.does_forward() * 2.0 * double(c.head_dim);
  return (c.does_forward() * 4.0 + c.does_backward() * 10.0) * double(c.head_dim);
}

// What is timed, in words.
inline std::string passes_text(const Case& c) {
  return c.has_forward_too ? "forward + backward" : to_string(c.operation);
}

// The cases that `only` names: a comma-separated list in which * matches any text. A case of
// several batch entries has that many times the heads. Throws Error(usage), with a list of all
// names, if one matches no case; `source` names the text in errors.
std::vector<Case> parse_cases(std::string_view text, Operation operation, const std::string& source,
                              const std::string& only = "*");
// The built-in cases, bench/cases/cpu.txt or gpu.txt. If `only` is empty, all but the special ones
// that the head of gpu.txt explains.
std::vector<Case> built_in_cases(Operation operation, const Device& device = {},
                                 const std::string& only = "");
std::vector<Case> cases_from_file(const std::string& path, Operation operation,
                                  const std::string& only);

}  // namespace keyhole::bench
