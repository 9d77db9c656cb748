// tests/base/keyed_permutation_test.cpp
// The permutation behind random(): a bijection with an inverse, the same numbers on every machine,
// and no favourites.
#include "base/keyed_permutation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace keyhole {
namespace {

TEST(KeyedPermutation, IsABijectionWithAnInverse) {
  for (uint64_t size = 1; size <= 300; ++size) {
    for (const uint64_t seed : {uint64_t{0}, uint64_t{7}, ~uint64_t{0}}) {
      const KeyedPermutation permutation(size, seed, size * 3);
      std::vector<bool> seen(size);
      for (uint64_t i = 0; i < size; ++i) {
        const uint64_t x = permutation.forward(i);
        ASSERT_LT(x, size);
        ASSERT_FALSE(seen[x]) << "size " << size << ": " << x << " comes twice";
        seen[x] = true;
        ASSERT_EQ(permutation.inverse(x), i);
      }
    }
  }
}

TEST(KeyedPermutation, HandlesTheLargestSizes) {
  for (const uint64_t size : {uint64_t{1} << 62, (uint64_t{1} << 61) + 1, uint64_t{1} << 32}) {
    const KeyedPermutation permutation(size, 1, 2);
    for (const uint64_t i : {uint64_t{0}, uint64_t{12345}, size - 1}) {
      EXPECT_EQ(permutation.inverse(permutation.forward(i)), i);
    }
  }
}

// Written down once, from the definition in the header computed by another program.
TEST(KeyedPermutation, DrawsTheSameOnEveryMachine) {
  struct Golden {
    uint64_t size, seed, stream;
    std::vector<uint64_t> first;
  };
  const Golden goldens[] = {
      {1u, 5u, 5u, {0u}},
      {2u, 0u, 0u, {0u, 1u}},
      {10u, 42u, 0u, {9u, 8u, 3u, 6u, 5u, 4u}},
      {10u, 42u, 1u, {7u, 4u, 3u, 8u, 2u, 9u}},
      {16u, 7u, 18446744073709551615u, {15u, 1u, 12u, 3u, 13u, 5u}},
      {1000u, 1u, 2u, {817u, 62u, 678u, 292u, 224u, 820u}},
      {8192u, 123456789u, 8191u, {1178u, 5045u, 2624u, 4551u, 2282u, 7469u}},
      {1099511627776u,
       3u,
       4u,
       {732043432584u, 215258317107u, 945909970101u, 317677600062u, 720659402333u, 17002349358u}},
  };
  for (const Golden& golden : goldens) {
    const KeyedPermutation permutation(golden.size, golden.seed, golden.stream);
    for (size_t i = 0; i < golden.first.size(); ++i) {
      EXPECT_EQ(permutation.forward(i), golden.first[i])
          << "size " << golden.size << ", element " << i;
    }
  }
}

// Over many keys every element goes everywhere equally often, and so do pairs of elements:
// chi-squared stays within six deviations of what chance gives (keys are fixed, so this never
// flickers).
TEST(KeyedPermutation, HasNoFavourites) {
  const int num_keys = 50'000;
  for (const uint64_t size : {2, 3, 5, 8, 16, 17, 100, 300}) {
    std::vector<int> single(size), pair(size * size);
    for (uint64_t key = 0; key < num_keys; ++key) {
      const KeyedPermutation permutation(size, 99, key);
      ++single[permutation.forward(0)];
      ++pair[permutation.forward(0) * size + permutation.forward(1)];
    }
    const auto deviations = [&](const std::vector<int>& counts, double cells) {
      const double expected = num_keys / cells;
      double chi_squared = 0;
      for (const int count : counts) {
        if (count > 0) chi_squared += (count - expected) * (count - expected) / expected;
      }
      return (chi_squared - (cells - 1)) / std::sqrt(2 * (cells - 1));
    };
    EXPECT_LT(deviations(single, double(size)), 6) << "size " << size;
    EXPECT_LT(deviations(pair, double(size * (size - 1))), 6) << "size " << size;
  }
}

}  // namespace
}  // namespace keyhole
