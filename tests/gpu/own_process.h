// tests/gpu/own_process.h
// Tests that are a process of their own: what is made once for a process, or dies with it.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "gpu/gpu_problem.h"

namespace keyhole::test {

// Its tests call expect_in_own_process() and do nothing else.
class GpuDeathTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    GTEST_FLAG_SET(death_test_style, "threadsafe");  // a new process, not a fork of one with a GPU
  }
};

inline void expect_in_own_process(void (*body)()) {
  EXPECT_EXIT(
      {
        body();
        std::fflush(nullptr);
        std::_Exit(testing::Test::HasFailure() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace keyhole::test
