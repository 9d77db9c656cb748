// tests/support/inputs.h
// The tensors of a case: inputs filled according to its regime, outputs full of canaries.
#pragma once

#include <vector>

#include "keyhole/attention.h"
#include "support/case.h"
#include "support/poison.h"

namespace keyhole::test {

// Which keys each query of each head may see, asked once from the pattern and then looked up.
class AllowedPairs {
 public:
  AllowedPairs(const Pattern& pattern, const Shape& shape);
  bool operator()(int64_t batch, int64_t head, int64_t query, int64_t key) const {
    return row(batch, head, query)[key] != 0;
  }
  const uint8_t* row(int64_t batch, int64_t head, int64_t query) const {
    return allowed_.data() + ((batch * shape_.heads + head) * shape_.q_len + query) * shape_.k_len;
  }
  int64_t count(int64_t batch, int64_t head, int64_t query) const;
  const Shape& shape() const { return shape_; }

 private:
  Shape shape_;
  std::vector<uint8_t> allowed_;  // [batch][heads][q_len][k_len]
};

struct Inputs {
  PoisonedTensor q, k, v, dout, sink;
  AttentionOptions options;  // scale, softcap, sink, threads of the case

  std::string damage() const;
};

struct Outputs {
  PoisonedTensor out, lse, dq, dk, dv, dsink;

  std::string damage() const;
};

Inputs make_inputs(const Case& c, const AllowedPairs& allowed);
Outputs make_outputs(const Case& c);
// The same numbers in plain contiguous tensors.
Inputs contiguous(const Case& c, const Inputs& inputs);
Outputs contiguous_outputs(const Case& c);

}  // namespace keyhole::test
