// tests/base/parallel_test.cpp
// parallel_for: every item once, threads in range, nesting, and the same exception for any number
// of threads.
#include "base/parallel.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace keyhole {
namespace {

TEST(ParallelFor, VisitsEveryItemOnce) {
  for (const int threads : {0, 1, 2, 3, 8}) {
    for (const int64_t count : {0, 1, 2, 7, 1000}) {
      const int most = threads > 0 ? threads : max_threads();
      std::vector<int> visits(size_t(count), 0);
      std::atomic<bool> is_in_range = true;
      parallel_for(count, threads, [&](int64_t item, int thread) {
        ++visits[size_t(item)];
        if (thread < 0 || thread >= most) is_in_range = false;
      });
      EXPECT_EQ(visits, std::vector<int>(size_t(count), 1)) << threads << " threads";
      EXPECT_TRUE(is_in_range);
    }
  }
}

// What each thread keeps for itself is touched by one thread at a time.
TEST(ParallelFor, ThreadNumbersAreDistinct) {
  std::vector<int64_t> sums(4, 0);
  parallel_for(10000, 4, [&](int64_t item, int thread) { sums[size_t(thread)] += item; });
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), int64_t{0}), 10000 * 9999 / 2);
}

TEST(ParallelFor, InsideAnotherRunsOnItsOwnThread) {
  std::atomic<int64_t> visits = 0;
  std::atomic<bool> is_serial = true;
  parallel_for(6, 3, [&](int64_t, int) {
    int64_t expected = 0;
    parallel_for(50, 3, [&](int64_t item, int thread) {
      if (item != expected++ || thread != 0) is_serial = false;
      ++visits;
    });
  });
  EXPECT_EQ(visits, 300);
  EXPECT_TRUE(is_serial);
}

// Where the parent has threads, which are not there in the child: it would wait for them.
TEST(ParallelFor, GoesOnByItselfInAChildOfFork) {
  const auto sum_of = [](int64_t count) {
    std::atomic<int64_t> sum = 0;
    parallel_for(count, 4, [&](int64_t item, int) { sum += item; });
    return sum.load();
  };
  EXPECT_EQ(sum_of(100), 4950);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(30);  // seconds, then it is killed
    _exit(sum_of(100) == 4950 ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(sum_of(100), 4950);  // and the parent has them still
}

TEST(ParallelFor, ThrowsTheExceptionOfTheLowestItem) {
  for (const int threads : {1, 2, 5}) {
    for (int repeat = 0; repeat < 50; ++repeat) {
      std::atomic<int64_t> started = 0;
      try {
        parallel_for(1000000, threads, [&](int64_t item, int) {
          ++started;
          if (item >= 20 && item % 3 == 0) throw std::runtime_error(std::to_string(item));
        });
        FAIL() << "an exception was lost";
      } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "21");
      }
      EXPECT_LT(started, 1000000) << "the others were told to stop";
    }
  }
}

}  // namespace
}  // namespace keyhole
