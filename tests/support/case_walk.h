// tests/support/case_walk.h
// What every walk over the pairs of a case needs: tensors as fp64 copies in logical order, where
// rows are in them, and the rules of rounding.
#pragma once

#include <vector>

#include "support/tolerance.h"

namespace keyhole::test {

struct CaseWalk {
  const Case& c;
  const AllowedPairs& allowed;
  std::vector<double> q, k, v, dout, sink;
  Rounding rules;

  CaseWalk(const Case& the_case, const AllowedPairs& pairs, const Inputs& in, bool rounds_weights)
      : c(the_case),
        allowed(pairs),
        q(in.q.values()),
        k(in.k.values()),
        v(in.v.values()),
        dout(in.dout.values()),
        sink(in.sink.values()),
        rules(rounding_of(c, rounds_weights)) {}

  int64_t q_row(int64_t b, int64_t h, int64_t i) const { return (b * c.heads + h) * c.q_len + i; }
  int64_t k_row(int64_t b, int64_t h, int64_t j) const {
    return (b * c.kv_heads + h / (c.heads / c.kv_heads)) * c.k_len + j;
  }
  template <class Visit>
  void for_each_row(const Visit& visit) const {
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t h = 0; h < c.heads; ++h) {
        for (int64_t i = 0; i < c.q_len; ++i) visit(b, h, i);
      }
    }
  }
};

}  // namespace keyhole::test
