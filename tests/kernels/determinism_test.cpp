// tests/kernels/determinism_test.cpp
// The same inputs, plan and kernel give the same bits: for 1 to 8 threads, again and again, and
// when several threads of the caller share one plan.
#include <gtest/gtest.h>

#include <iostream>
#include <thread>

#include "plan/plan_state.h"
#include "support/check_case.h"
#include "support/scale.h"

namespace keyhole::test {
namespace {

std::vector<uint64_t> bits_of(const Outputs& o) {
  std::vector<uint64_t> bits;
  for (const PoisonedTensor* tensor : {&o.out, &o.lse, &o.dq, &o.dk, &o.dv, &o.dsink}) {
    const auto more = tensor->bits();
    bits.insert(bits.end(), more.begin(), more.end());
  }
  return bits;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* line :
       {"pattern=causal heads=4 kv_heads=2 q_len=200 k_len=200 head_dim=16 v_head_dim=16 tile=-1",
        "pattern=dense heads=3 kv_heads=1 q_len=70 k_len=300 head_dim=8 v_head_dim=24 sink=1 "
        "tile=-1",
        "pattern=strided(16) batch=2 heads=2 kv_heads=1 q_len=180 k_len=180 head_dim=16 "
        "v_head_dim=8 tile=-1 forms=2",
        "pattern=random(1,20,3) heads=4 kv_heads=2 q_len=150 k_len=400 head_dim=8 v_head_dim=8 "
        "tile=-1",
        "pattern=or(window(3),or(exponential,dilated(9))) heads=2 kv_heads=1 q_len=200 k_len=200 "
        "softcap=5 "
        "tile=-1",
        "pattern=per_head(causal,window(5),dense) heads=3 kv_heads=3 q_len=130 k_len=130 tile=1",
        "pattern=causal heads=4 kv_heads=2 q_len=200 k_len=200 head_dim=16 v_head_dim=16 tile=-1 "
        "alpha=1.5",
        "pattern=strided(16) batch=2 heads=2 kv_heads=1 q_len=180 k_len=180 head_dim=16 "
        "v_head_dim=8 "
        "tile=-1 forms=2 alpha=1.25 sink=1",
        "pattern=dense heads=3 kv_heads=1 q_len=70 k_len=300 head_dim=8 v_head_dim=24 sink=1 "
        "alpha=2 "
        "top_k=9 tile=-1",
        "pattern=random(1,20,3) heads=4 kv_heads=2 q_len=150 k_len=400 head_dim=8 v_head_dim=8 "
        "top_k=5 softcap=3 tile=-1",
        "pattern=dense heads=2 kv_heads=1 q_len=150 k_len=400 regime=zeros alpha=1.5 tile=-1",
        // Key lists of several spans, which the heads of a kv head share
        "pattern=random(1,300,3) heads=8 kv_heads=2 q_len=40 k_len=800 head_dim=16 v_head_dim=8 "
        "tile=-1 forms=3",
        // Hundreds of lists without steps, and many heads that share keys
        "pattern=and(dilated(320),and(causal,window(5))) heads=40 kv_heads=2 q_len=6 k_len=809 "
        "head_dim=8 v_head_dim=8 tile=-1 forms=2",
        // One long list among short ones: the case for which work is split
        "pattern=global(1) q_len=700 k_len=700 head_dim=8 v_head_dim=8 tile=-1"}) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
      Case c = parse_case(line);
      c.dtype = dtype;
      all.push_back(c);
    }
  }
  return all;
}

struct Prepared {
  Case c;
  Plan made;
  Inputs in;
  explicit Prepared(const Case& the_case)
      : c(the_case),
        made(make_plan(build(c.pattern, c.shape()), c.shape(), c.policy())),
        in(make_inputs(c, AllowedPairs(build(c.pattern, c.shape()), c.shape()))) {}
  std::vector<uint64_t> run(const KernelChoice& kernel, const Plan& with, int threads) const {
    Outputs o = make_outputs(c);
    run_forward_of(c, kernel, with, in, o, threads);
    if (kernel.backward != nullptr) run_backward_of(c, kernel, with, in, o, threads);
    return bits_of(o);
  }
};

TEST(Determinism, TheSameBitsForAnyNumberOfThreadsAndEveryTime) {
  int64_t runs = 0;
  for (const Case& c : cases()) {
    const Prepared prepared(c);
    for (const KernelChoice& kernel : kernels_for(c)) {
      const auto want = prepared.run(kernel, prepared.made, 1);
      for (int threads = 1; threads <= 8; ++threads) {
        for (int64_t repeat = 0; repeat < scaled(3); ++repeat, ++runs) {
          ASSERT_EQ(prepared.run(kernel, prepared.made, threads), want)
              << kernel.forward->name << " with " << threads << " threads: " << to_text(c);
        }
      }
    }
  }
  std::cout << runs << " repeated runs\n";
}

TEST(Determinism, APlanMadeAgainGivesTheSameBits) {
  for (const Case& c : cases()) {
    const Prepared prepared(c), again(c);
    for (const KernelChoice& kernel : kernels_for(c)) {
      ASSERT_EQ(prepared.run(kernel, prepared.made, 2), prepared.run(kernel, again.made, 2))
          << to_text(c);
    }
  }
}

TEST(Determinism, ThreadsOfTheCallerMayShareAPlan) {
  for (const Case& c : cases()) {
    if (c.dtype != DType::f32) continue;
    const Prepared prepared(c);
    for (const KernelChoice& kernel : kernels_for(c)) {
      const auto want = prepared.run(kernel, Prepared(c).made, 1);
      // Nothing is compiled yet: all four ask for the lists at once.
      std::vector<std::vector<uint64_t>> got(4);
      std::vector<std::thread> callers;
      for (auto& mine : got) {
        callers.emplace_back([&] { mine = prepared.run(kernel, prepared.made, 1); });
      }
      for (std::thread& caller : callers) caller.join();
      for (const auto& mine : got) EXPECT_EQ(mine, want) << to_text(c);
    }
  }
}

}  // namespace
}  // namespace keyhole::test
