// src/kernels/cpu/entmax_exact.h
// The cold path of entmax and top_k: one row in fp64, for rows with a score that is not finite in
// the precision of the kernel. What is NaN or +inf here, too, makes the row NaN.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/contract.h"
#include "kernels/cpu/problem.h"

namespace keyhole::cpu {

struct ExactRow {
  std::vector<int32_t> keys;  // that have weight; all attended ones if the row is NaN
  std::vector<double> scores, weights, slopes;
  double lambda = 0;  // -inf: no key, and no sink; NaN: so are all weights
};

// given_lambda: that of the forward pass, or null to solve for it.
template <class Storage>
ExactRow exact_entmax_row(const TensorView& q, const TensorView& k, const Problem& problem,
                          const Head& head, int64_t query, const double* given_lambda);

}  // namespace keyhole::cpu
