// tests/gpu/old_gpu_test.cpp
// A GPU that CUDA 13 cannot compile for is refused with the reason. Needs no GPU.
#include <gtest/gtest.h>

#include "runtime/gpu.h"

namespace keyhole::test {
namespace {

TEST(OldGpu, IsRefusedWithTheReason) {
  EXPECT_EQ(why_refused({.name = "Tesla V100", .compute_capability = 70}),
            "Tesla V100 is of compute capability 7.0, and CUDA 13 compiles for 7.5 and newer only");
  EXPECT_EQ(why_refused({.name = "Tesla T4", .compute_capability = 75}), "");
  EXPECT_EQ(why_refused({.name = "NVIDIA H200", .compute_capability = 90}), "");
}

}  // namespace
}  // namespace keyhole::test
