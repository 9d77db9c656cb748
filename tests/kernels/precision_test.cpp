// tests/kernels/precision_test.cpp
// The accuracy that docs/numerics.md promises, in plain figures: fp32 inputs give fp32 answers, and
// 16-bit inputs lose no more than the rounding of their outputs.
#include <gtest/gtest.h>

#include <cmath>

#include "reference/attention.h"
#include "support/check_case.h"

namespace keyhole::test {
namespace {

// The largest error of each row, relative to that row's largest element; then the worst row.
double worst_row_error(const std::vector<double>& got, const std::vector<double>& want,
                       int64_t columns) {
  double worst = 0;
  for (size_t row = 0; row < got.size(); row += size_t(columns)) {
    double error = 0, size = 1e-30;
    for (size_t x = 0; x < size_t(columns); ++x) {
      error = std::max(error, std::abs(got[row + x] - want[row + x]));
      size = std::max(size, std::abs(want[row + x]));
    }
    worst = std::max(worst, error / size);
  }
  return worst;
}

TEST(Precision, AsPromisedByTheContract) {
  for (const char* pattern : {"causal", "window(40)", "strided(16)", "random(1,30,3)"}) {
    for (const auto& [dtype, promised] : {std::pair{DType::f32, 1e-5},
                                          {DType::f64, 1e-13},
                                          {DType::f16, 1e-3},
                                          {DType::bf16, 8e-3}}) {
      Case c;
      c.pattern = parse_expression(pattern);
      c.dtype = dtype, c.heads = 2, c.kv_heads = 1, c.q_len = c.k_len = 256;
      c.head_dim = c.v_head_dim = 64, c.tile = -1;
      const Pattern built = build(c.pattern, c.shape());
      const Plan made = plan(built, c.shape());
      const Inputs in = make_inputs(c, AllowedPairs(built, c.shape()));
      const auto want =
          reference_forward(built, in.q.view(), in.k.view(), in.v.view(), in.options, c.offset);
      const auto gradients = reference_backward(built, in.dout.view(), in.q.view(), in.k.view(),
                                                in.v.view(), in.options, c.offset);
      for (const KernelChoice& kernel : kernels_for(c)) {
        Outputs o = make_outputs(c);
        run_forward_of(c, kernel, made, in, o, 1);
        run_backward_of(c, kernel, made, in, o, 1);
        EXPECT_LE(worst_row_error(o.out.values(), want.out, 64), promised)
            << kernel.forward->name << pattern;
        // Gradients are sums of differences; their rows are small where those cancel.
        const double slack = 8 * promised;
        EXPECT_LE(worst_row_error(o.dv.values(), gradients.dv, 64), slack)
            << kernel.backward->name << pattern;
        EXPECT_LE(worst_row_error(o.dk.values(), gradients.dk, 64), slack)
            << kernel.backward->name << pattern;
        EXPECT_LE(worst_row_error(o.dq.values(), gradients.dq, 64 * 256), slack)
            << kernel.backward->name << pattern;
        for (int64_t i = 0; i < o.lse.num_elements(); ++i) {
          EXPECT_NEAR(o.lse.get(i), want.lse[size_t(i)], dtype == DType::f64 ? 1e-13 : 4e-6);
        }
      }
    }
  }
}

}  // namespace
}  // namespace keyhole::test
