// tests/kernels/key_lists_test.cpp
// Plans of key lists alone, which patterns get only when they are thin: every kernel of the table
// against the reference, at the sizes where the kernels for such lists change what they do.
#include <gtest/gtest.h>

#include <iostream>

#include "runtime/gpu.h"
#include "support/check_case.h"
#include "support/generator.h"
#include "support/scale.h"

namespace keyhole::test {
namespace {

constexpr const char* kCases[] = {
    // query heads of one kv head are the rows of a product: one, a few, 16, more
    "pattern=random(1,40,3) q_len=9 k_len=200 head_dim=64 v_head_dim=64",
    "pattern=random(1,70,3) heads=3 q_len=7 k_len=90 head_dim=40 v_head_dim=64 sink=1",
    "pattern=random(1,80,3) heads=16 q_len=5 k_len=200 head_dim=128 v_head_dim=128",
    "pattern=random(1,65,3) heads=20 q_len=5 k_len=150 head_dim=64 v_head_dim=24 "
    "regime=masked_nan",
    "pattern=random(1,129,3) batch=2 heads=40 kv_heads=2 q_len=3 k_len=140 head_dim=96 "
    "v_head_dim=96",
    // lists of every length from 0 on: steps of 16 keys, dealt out to four warps
    "pattern=causal heads=16 q_len=70 k_len=70 head_dim=8 v_head_dim=8",
    "pattern=causal heads=5 q_len=140 k_len=135 head_dim=16 v_head_dim=8 regime=integers",
    "pattern=dense heads=16 q_len=3 k_len=333 head_dim=24 v_head_dim=24 regime=deep",
    "pattern=not(dense) heads=16 q_len=5 k_len=9 sink=1",
    "pattern=csr(20,5) heads=2 q_len=20 k_len=300 head_dim=32 v_head_dim=32",
    // heads of one kv head with lists of their own, or none
    "pattern=per_head(random(1,30,1),random(1,17,2)) heads=20 q_len=9 k_len=90 head_dim=48 "
    "v_head_dim=48",
    "pattern=per_head(random(1,30,1),not(dense),window(3)) heads=6 kv_heads=2 q_len=40 k_len=40 "
    "regime=masked_nan",
    "pattern=per_batch(per_head(causal,dilated(2)),random(1,20,1)) batch=2 heads=16 kv_heads=1 "
    "q_len=30 k_len=60",
    // widths: padded up to the next one that is compiled; the largest; odd ones
    "pattern=random(1,33,2) heads=16 q_len=4 k_len=99 head_dim=72 v_head_dim=128",
    "pattern=random(1,33,2) heads=17 q_len=4 k_len=99 head_dim=192 v_head_dim=136",
    "pattern=random(1,33,2) heads=16 q_len=4 k_len=99 head_dim=256 v_head_dim=256",
    "pattern=random(1,33,2) heads=3 q_len=6 k_len=99 head_dim=17 v_head_dim=33",
    "pattern=random(1,33,2) heads=3 q_len=6 k_len=99 head_dim=576 v_head_dim=320",
    // layouts whose rows stay aligned
    "pattern=random(1,20,4) batch=2 heads=6 kv_heads=2 q_len=11 k_len=60 head_dim=32 v_head_dim=32 "
    "q=bshd k=sliced v=bshd out=sliced dout=bshd dq=sliced dk=bshd dv=sliced",
    "pattern=random(1,20,4) batch=2 heads=4 kv_heads=2 q_len=11 k_len=60 head_dim=32 v_head_dim=32 "
    "q=expanded_heads k=expanded_batch v=expanded_heads dout=expanded_batch",
    // scores and numbers
    "pattern=random(1,50,6) heads=16 q_len=6 k_len=80 softcap=2",
    "pattern=random(1,50,6) heads=16 q_len=6 k_len=80 softcap=0.5 sink=1 regime=huge",
    "pattern=random(1,50,6) heads=16 q_len=6 k_len=80 scale=0",
    "pattern=random(1,50,6) heads=16 q_len=6 k_len=80 scale=-1.5",
    "pattern=random(1,90,6) heads=4 q_len=6 k_len=120 regime=huge",
    "pattern=random(1,90,6) heads=4 q_len=6 k_len=120 regime=spike data=3",
    "pattern=random(1,90,6) heads=4 q_len=6 k_len=120 regime=subnormal",
    "pattern=random(1,90,6) heads=4 q_len=6 k_len=120 regime=count",
    "pattern=random(1,90,6) heads=4 q_len=6 k_len=120 regime=ones",
    "pattern=random(1,50,6) heads=16 q_len=20 k_len=80 regime=attended_nan data=11",
    "pattern=random(1,50,6) heads=20 q_len=20 k_len=80 regime=attended_nan data=12",
    "pattern=random(1,7,6) heads=4 kv_heads=2 q_len=20 k_len=80 regime=attended_nan data=13",
};

void expect_agreement(Case c, SplitPolicy policy, CheckStats& stats) {
  c.forms = int(policy);
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    c.dtype = dtype;
    for (const KernelChoice& kernel : kernels_for(c)) {
      const Failure failure = check_case_with(c, kernel, &stats);
      EXPECT_FALSE(failure) << kernel.forward->name << "\n  " << failure.kind << ": "
                            << failure.detail << "\n  keyhole_fuzz --case '" << to_text(c) << "'";
    }
  }
}

TEST(KeyLists, AgreeWithTheReference) {
  CheckStats stats;
  for (const char* line : kCases) expect_agreement(parse_case(line), SplitPolicy::gather, stats);
  std::cout << "key lists: " << stats.kernel_runs << " kernel runs, " << stats.pairs
            << " pairs, at most " << stats.worst << " of the rounding bound used\n";
}

// What goes by spans of keys in a deterministic pass.
TEST(KeyLists, OfSeveralSpansAgreeWithTheReference) {
  CheckStats stats;
  for (const char* line :
       {"pattern=random(1,300,3) heads=16 q_len=9 k_len=1025 head_dim=64 v_head_dim=64",
        "pattern=random(1,200,3) batch=2 heads=8 kv_heads=2 q_len=7 k_len=770 head_dim=40 "
        "v_head_dim=64 sink=1 regime=masked_nan",
        "pattern=causal heads=4 q_len=40 k_len=600 head_dim=128 v_head_dim=128 regime=integers",
        "pattern=random(1,400,3) heads=20 q_len=5 k_len=513 head_dim=192 v_head_dim=256",
        "pattern=csr(40,5) heads=6 q_len=30 k_len=512 head_dim=32 v_head_dim=32 regime=deep",
        "pattern=random(1,300,6) heads=16 q_len=6 k_len=900 head_dim=64 v_head_dim=64 "
        "regime=attended_nan data=11"}) {
    expect_agreement(parse_case(line), SplitPolicy::gather, stats);
  }
  expect_agreement(parse_case("pattern=or(window(30),random(1,200,5)) heads=16 q_len=30 k_len=900 "
                              "head_dim=64 v_head_dim=64 sink=1"),
                   SplitPolicy::mixed, stats);
  std::cout << "key lists of several spans: " << stats.kernel_runs << " kernel runs\n";
}

TEST(KeyLists, OfRandomCasesOnAGpu) {
  if (gpus().empty()) GTEST_SKIP() << why_no_gpu();
  CheckStats stats;
  for (uint64_t seed = 1; seed <= uint64_t(scaled(60)); ++seed) {
    const Case c = draw_key_list_case(seed);
    for (const KernelChoice& kernel : kernels_for(c)) {
      if (kernel.forward->device != Device::Kind::cuda) continue;
      const Failure failure = check_case_with(c, kernel, &stats);
      EXPECT_FALSE(failure) << kernel.forward->name << "\n  " << failure.kind << ": "
                            << failure.detail << "\n  keyhole_fuzz --gpu --case '" << to_text(c)
                            << "'";
    }
  }
  std::cout << "random key lists: " << stats.kernel_runs << " kernel runs\n";
}

// Lists that follow tiles find a state of every row, and gradients that are sums already.
TEST(KeyLists, JoinWhatOtherPartsGave) {
  CheckStats stats;
  for (const char* line :
       {"pattern=or(window(3),random(1,20,5)) heads=16 q_len=60 k_len=60 head_dim=64 v_head_dim=64",
        "pattern=or(window(3),random(1,20,5)) heads=20 q_len=40 k_len=60 head_dim=72 "
        "v_head_dim=128 sink=1 regime=masked_nan",
        "pattern=or(dilated(7),random(1,40,5)) batch=2 heads=6 kv_heads=2 q_len=50 k_len=90 "
        "regime=deep",
        "pattern=or(and(causal,sinks(1)),random(1,3,5)) heads=3 q_len=30 k_len=30 "
        "regime=attended_nan data=2"}) {
    expect_agreement(parse_case(line), SplitPolicy::mixed, stats);
  }
  std::cout << "key lists after tiles: " << stats.kernel_runs << " kernel runs\n";
}

}  // namespace
}  // namespace keyhole::test
