// course/02_flash_minimal/exact_backward.h
// Inputs of a backward pass, and its gradients by the definition, in fp64.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "common/tensors.h"

namespace course {

// q, k, v, dout, out and the gradients are [heads, length, d]; lse is [heads, length].
struct Exact {
  std::vector<float> q, k, v, dout, out, lse;
  std::vector<double> dq, dk, dv;

  Exact(std::size_t heads, std::size_t length, std::size_t d)
      : q(random_values(heads * length * d, 1)),
        k(random_values(q.size(), 2)),
        v(random_values(q.size(), 3)),
        dout(random_values(q.size(), 4)),
        out(q.size()),
        lse(heads * length),
        dq(q.size()),
        dk(q.size()),
        dv(q.size()) {
    for (std::size_t head = 0; head < heads; ++head) {
      for (std::size_t i = 0; i < length; ++i) one_query(head * length, i, length, d);
    }
  }

 private:
  static double dot(const std::vector<float>& a, std::size_t row_of_a, const std::vector<float>& b,
                    std::size_t row_of_b, std::size_t d) {
    double sum = 0;
    for (std::size_t x = 0; x < d; ++x) {
      sum += static_cast<double>(a[row_of_a * d + x]) * b[row_of_b * d + x];
    }
    return sum;
  }

  // `head` is the first row of the head.
  void one_query(std::size_t head, std::size_t i, std::size_t length, std::size_t d) {
    const double scale = 1 / std::sqrt(static_cast<double>(d));
    const std::size_t query = head + i;
    std::vector<double> weights(length), dweights(length), exact_out(d);
    double sum = 0, delta = 0;
    for (std::size_t j = 0; j < length; ++j) {
      weights[j] = std::exp(scale * dot(q, query, k, head + j, d));  // small scores: no maximum
      sum += weights[j];
      dweights[j] = dot(dout, query, v, head + j, d);
    }
    for (std::size_t j = 0; j < length; ++j) {
      weights[j] /= sum;
      delta += weights[j] * dweights[j];
    }
    for (std::size_t j = 0; j < length; ++j) {
      const std::size_t key = head + j;
      const double dscore = scale * weights[j] * (dweights[j] - delta);
      for (std::size_t x = 0; x < d; ++x) {
        exact_out[x] += weights[j] * v[key * d + x];
        dv[key * d + x] += weights[j] * dout[query * d + x];
        dq[query * d + x] += dscore * k[key * d + x];
        dk[key * d + x] += dscore * q[query * d + x];
      }
    }
    for (std::size_t x = 0; x < d; ++x) out[query * d + x] = static_cast<float>(exact_out[x]);
    lse[query] = static_cast<float>(std::log(sum));
  }
};

}  // namespace course
