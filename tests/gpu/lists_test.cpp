// tests/gpu/lists_test.cpp
// CTAs that follow several lists, one after the other, forward and backward: more lists than a GPU
// has processors, of every kind that a list and its results can be. The table's cases are smaller:
// a CTA has one list there, and nothing ever begins while something else ends.
#include <iostream>

#include "gpu/gpu_problem.h"
#include "support/check_case.h"

namespace keyhole::test {
namespace {

using Lists = GpuTest;

constexpr const char* kManyLists[] = {
    // long and short ones; ends of sequences inside a tile
    "pattern=causal batch=4 heads=40 kv_heads=40 q_len=500 k_len=500",
    // dq is written, not summed: every query tile has one step
    "pattern=blocks(16) batch=4 heads=40 kv_heads=40 q_len=500 k_len=500 dq=bshd dk=bshd dv=sliced",
    "pattern=and(causal,blocks(128)) batch=4 heads=40 kv_heads=40 q_len=512 k_len=512 sink=1",
    // and some query tiles have none
    "pattern=and(blocks(64),not(sinks(64))) batch=4 heads=40 kv_heads=40 q_len=500 k_len=450 "
    "offset=0",
    // empty lists and heads without lists
    "pattern=per_head(causal,not(dense),blocks(64),window(40)) batch=40 heads=4 kv_heads=4 "
    "q_len=500 k_len=500",
    // dk and dv in sums: heads that share keys, empty lists that add nothing
    "pattern=window(100,0) batch=20 heads=8 kv_heads=2 q_len=400 k_len=600 dk=padded",
    // residue classes of unequal length
    "pattern=and(causal,dilated(3)) batch=10 heads=8 kv_heads=8 q_len=799 k_len=799 forms=2",
    // two parts
    "pattern=strided(16) batch=10 heads=16 kv_heads=16 q_len=400 k_len=400",
    // chunks of long lists among whole ones
    "pattern=or(sinks(3),window(20)) heads=48 kv_heads=48 q_len=5000 k_len=300",
    // a scale that is not positive changes the queries of the next list while this one ends
    "pattern=causal batch=4 heads=40 kv_heads=40 q_len=500 k_len=500 scale=-0.3",
    "pattern=blocks(128) batch=4 heads=40 kv_heads=40 q_len=512 k_len=512 scale=0",
    // tiles of the second kind, for short lists
    "pattern=blocks(16) batch=4 heads=40 kv_heads=40 q_len=500 k_len=500 tile=1",
    // rows that are done again while the next list begins
    "pattern=and(window(40),not(sinks(3))) batch=4 heads=40 kv_heads=40 q_len=500 k_len=500 "
    "regime=masked_nan",
    // gradients that are not finite
    "pattern=causal batch=4 heads=40 kv_heads=40 q_len=300 k_len=300 regime=attended_nan data=7",
    "pattern=blocks(32) batch=4 heads=40 kv_heads=40 q_len=300 k_len=300 regime=attended_nan "
    "data=8",
};

// On its processor, and follows list after list.
bool stays(const KernelEntry* kernel) {
  return kernel != nullptr && kernel->persistence != nullptr;
}

TEST_F(Lists, OneAfterTheOther) {
  CheckStats stats;
  int num_kernels = 0;
  for (const char* line : kManyLists) {
    for (const int64_t head_dim : {64, 128, 192, 256}) {
      Case c = parse_case(line);
      c.dtype = head_dim == 64 ? DType::f16 : DType::bf16;
      c.head_dim = head_dim, c.v_head_dim = head_dim - 8;
      for (KernelChoice kernel : kernels_for(c)) {
        if (!stays(kernel.backward)) kernel.backward = nullptr;
        if (!stays(kernel.forward) && kernel.backward == nullptr) continue;
        ++num_kernels;
        const Failure failure = check_case_with(c, kernel, &stats);
        EXPECT_FALSE(failure) << kernel.forward->name << "\n  " << failure.kind << ": "
                              << failure.detail << "\n  " << to_text(c);
      }
    }
  }
  if (num_kernels == 0) {
    GTEST_SKIP() << "no kernel of this GPU and of KEYHOLE_TEST_BACKENDS follows list after list";
  }
  EXPECT_GT(stats.kernel_runs, 0);
  std::cout << stats.kernel_runs << " kernel runs, " << stats.pairs << " pairs\n";
}

}  // namespace
}  // namespace keyhole::test
