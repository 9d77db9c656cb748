// tests/support/tolerance_test.cpp
// The tolerance itself: a plain computation passes, and every classic wrong answer does not. A
// bound that nothing can break proves nothing.
#include "support/tolerance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/dtype.h"

namespace keyhole::test {
namespace {

constexpr DType kDTypes[] = {DType::f16, DType::bf16, DType::f32, DType::f64};

struct Problem {
  Case c;
  Pattern pattern;
  AllowedPairs allowed;
  Inputs in;
  ExpectedForward forward;

  explicit Problem(const Case& the_case)
      : c(the_case),
        pattern(build(c.pattern, c.shape())),
        allowed(pattern, c.shape()),
        in(make_inputs(c, allowed)),
        forward(expect_forward(c, pattern, allowed, in)) {}

  std::string judge(const std::vector<double>& out) const {
    return disagreement("out", c.dtype, out, forward.out);
  }
  // What a plain loop in the same precision makes of another pattern.
  std::vector<double> plain_of(const char* text) const {
    const Pattern other = build(parse_expression(text), c.shape());
    return expect_forward(c, other, AllowedPairs(other, c.shape()), in).out.plain;
  }
};

Case small_case(DType dtype) {
  Case c = parse_case("pattern=causal heads=2 q_len=40 k_len=40 head_dim=16 v_head_dim=16");
  c.dtype = dtype;
  return c;
}

TEST(Tolerance, APlainComputationPassesInEveryRegime) {
  for (const DType dtype : kDTypes) {
    for (int regime = 0; regime < kNumRegimes; ++regime) {
      Case c = small_case(dtype);
      c.regime = Regime(regime), c.softcap = regime % 2 ? 3 : 0, c.has_sink = regime % 3 == 0;
      const Problem p(c);
      EXPECT_EQ(p.judge(p.forward.out.plain), "") << to_text(c);
      EXPECT_EQ(disagreement("lse", DType::f32, p.forward.lse.plain, p.forward.lse), "")
          << to_text(c);
      const auto grad = expect_gradients(c, p.pattern, p.allowed, p.in, p.forward);
      for (const auto& [name, gradient] :
           {std::pair{"dq", &grad.dq}, {"dk", &grad.dk}, {"dv", &grad.dv}}) {
        EXPECT_EQ(disagreement(name, dtype, gradient->plain, *gradient), "") << to_text(c);
      }
    }
  }
}

TEST(Tolerance, OneWrongKeyDoesNot) {
  for (const DType dtype : kDTypes) {
    const Problem p(small_case(dtype));
    EXPECT_EQ(p.judge(p.plain_of("causal")), "");
    for (const char* wrong : {"window(39,1)", "and(causal,not(sinks(1)))", "and(causal,window(38))",
                              "or(causal,sinks(2))", "dense", "not(dense)"}) {
      EXPECT_NE(p.judge(p.plain_of(wrong)), "")
          << wrong << " passes for causal in " << to_string(dtype);
    }
  }
}

TEST(Tolerance, TruncatingInsteadOfRoundingDoesNot) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Problem p(small_case(dtype));
    std::vector<double> truncated = p.forward.out.want;
    for (double& value : truncated) {
      const double rounded = rounded_to(dtype, value);
      // One step towards zero when rounding went away from it.
      value = std::abs(rounded) > std::abs(value)
                  ? rounded_to(dtype, rounded * (1 - 1.5 * rounding_unit(dtype)))
                  : rounded;
    }
    EXPECT_NE(p.judge(truncated), "") << to_string(dtype);
  }
}

TEST(Tolerance, ReducedProductsOfFp32DoNot) {
  const Problem p(small_case(DType::f32));
  Case halves = p.c;  // the same numbers, rounded to bf16 before they are used
  halves.dtype = DType::bf16;
  EXPECT_NE(p.judge(Problem(halves).forward.out.want), "");
}

TEST(Tolerance, ASlightlyWrongScaleDoesNot) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Problem p(small_case(dtype));
    Case other = p.c;
    other.scale = 0.25 * (1 + 1e-4);  // 16 ** -0.5, nearly
    EXPECT_NE(p.judge(Problem(other).forward.out.plain), "") << to_string(dtype);
  }
}

TEST(Tolerance, SpecialsStandWhereTheReferenceHasThem) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = INFINITY;
  const Expected expected{{1, nan, -infinity, 0}, {1e9, 1e9, 1e9, 1e9}, {1, nan, -infinity, 0}};
  const auto judge = [&](std::vector<double> got) {
    return disagreement("x", DType::f32, got, expected);
  };
  EXPECT_EQ(judge({1, nan, -infinity, 0}), "");
  EXPECT_NE(judge({nan, nan, -infinity, 0}), "");  // a NaN that should not be there
  EXPECT_NE(judge({1, 1, -infinity, 0}), "");      // one that was laundered
  EXPECT_NE(judge({1, nan, infinity, 0}), "");     // the other infinity
  EXPECT_NE(judge({1, nan, -3e38, 0}), "");        // a stand-in for it
  EXPECT_NE(judge({1, nan, -infinity, infinity}), "");
  EXPECT_NE(judge({1, nan, -infinity}), "");  // a missing element
}

}  // namespace
}  // namespace keyhole::test
