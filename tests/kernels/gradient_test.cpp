// tests/kernels/gradient_test.cpp
// The fp64 kernels against central differences of their own forward pass: no reference, no formula.
#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "plan/plan_state.h"
#include "support/check_case.h"

namespace keyhole::test {
namespace {

constexpr double kStep = 1e-5;
constexpr int kElementsPerTensor = 12;  // drawn at random; every tensor of every case

double loss(const Case& c, const KernelChoice& kernel, const Plan& plan, const Inputs& in) {
  Outputs o = make_outputs(c);
  run_forward_of(c, kernel, plan, in, o, 1);
  double sum = 0;
  for (int64_t i = 0; i < o.out.num_elements(); ++i) sum += o.out.get(i) * in.dout.get(i);
  return sum;
}

double slope_at(const Case& c, const KernelChoice& kernel, const Plan& plan, const Inputs& in,
                PoisonedTensor& tensor, int64_t element, double step) {
  const double before = tensor.get(element);
  tensor.set(element, before + step);
  const double high_at = tensor.get(element), high = loss(c, kernel, plan, in);
  tensor.set(element, before - step);
  const double low_at = tensor.get(element), low = loss(c, kernel, plan, in);
  tensor.set(element, before);
  return (high - low) / (high_at - low_at);
}

TEST(KernelGradients, AgreeWithCentralDifferences) {
  Random random(17);
  for (const char* line :
       {"pattern=dense q_len=9 k_len=13", "pattern=causal heads=4 kv_heads=2 q_len=20 k_len=20",
        "pattern=and(causal,window(4)) heads=2 kv_heads=1 q_len=70 k_len=70 softcap=1.5",
        "pattern=causal heads=3 kv_heads=1 q_len=18 k_len=30 sink=1",
        "pattern=strided(5) heads=2 kv_heads=2 q_len=40 k_len=40 softcap=2 sink=1",
        "pattern=random(1,5,2) heads=2 kv_heads=1 q_len=30 k_len=60 sink=1",
        "pattern=or(exponential,dilated(7)) q_len=50 k_len=50 softcap=0.7",
        "pattern=not(causal) batch=2 q_len=17 k_len=17",
        "pattern=per_head(causal,dilated(2),sinks(4)) heads=3 kv_heads=1 q_len=33 k_len=33 "
        "scale=-0.6",
        "pattern=causal heads=4 kv_heads=2 q_len=20 k_len=20 alpha=1.5",
        "pattern=causal heads=2 kv_heads=1 q_len=20 k_len=30 alpha=1.25 softcap=1.5 sink=1",
        "pattern=dense heads=2 kv_heads=1 q_len=9 k_len=70 alpha=2 sink=1",
        "pattern=strided(5) q_len=40 k_len=40 alpha=1.3 top_k=4 softcap=2",
        "pattern=random(1,9,2) heads=2 kv_heads=1 q_len=30 k_len=60 top_k=3 sink=1",
        "pattern=dense q_len=9 k_len=40 alpha=1.01 scale=-0.6"}) {
    for (const int tile : {-1, 0, 1, 2}) {
      Case c = parse_case(line);
      c.dtype = DType::f64, c.head_dim = 5, c.v_head_dim = 3, c.tile = tile, c.forms = tile + 1;
      for (const KernelChoice& kernel : kernels_for(c)) {
        const Pattern pattern = build(c.pattern, c.shape());
        const Plan made = make_plan(pattern, c.shape(), c.policy());
        Inputs in = make_inputs(c, AllowedPairs(pattern, c.shape()));
        Outputs o = make_outputs(c);
        run_forward_of(c, kernel, made, in, o, 1);
        run_backward_of(c, kernel, made, in, o, 1);
        const auto compare = [&](const char* name, PoisonedTensor& tensor,
                                 const PoisonedTensor& gradient, double step, double slack) {
          for (int i = 0; i < kElementsPerTensor; ++i) {
            const int64_t element = random.below(tensor.num_elements());
            const double slope = slope_at(c, kernel, made, in, tensor, element, step);
            EXPECT_NEAR(gradient.get(element), slope, slack * (1 + std::abs(slope)))
                << kernel.backward->name << " " << name << "[" << element << "] " << to_text(c);
          }
        };
        compare("dq", in.q, o.dq, kStep, 1e-7);
        compare("dk", in.k, o.dk, kStep, 1e-7);
        compare("dv", in.v, o.dv, kStep, 1e-7);
        if (c.has_sink) compare("dsink", in.sink, o.dsink, 1e-3, 1e-5);  // the sink is fp32
      }
    }
  }
}

}  // namespace
}  // namespace keyhole::test
