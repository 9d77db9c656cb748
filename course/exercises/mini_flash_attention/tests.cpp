// course/exercises/mini_flash_attention/tests.cpp
// Tests of flash_attention in exercise.h, from easy to hard. Each one that fails says what was
// expected, what came, and a likely cause.
#include <cstdio>
#include <limits>
#include <vector>

#include "exercises/mini_flash_attention/judge.h"

using namespace course;

namespace {

// All keys fit into one tile: softmax as in the definition.
Case one_tile() {
  return {
      .name = "one tile",
      .hint = "is a weight exp(score - largest score)? Does every key count once, in both sums?",
      .keys = 16};
}

// Four tiles, scores in no order.
Case several_tiles() {
  return {
      .name = "several tiles",
      .hint =
          "are these the keys of the tile? Are sum and out kept, and rescaled by exp(old - new)?",
      .keys = 64};
}

// Every tile has larger scores than the one before it, by 3 or so.
Case growing_maximum() {
  Case test = {.name = "growing maximum",
               .hint = "is the old sum rescaled when the maximum grows?",
               .keys = 64};
  for (float& value : test.q) value = 1;
  for (int i = 0; i < test.keys * test.head_dim; ++i) test.k[i] += 0.07f * float(i / test.head_dim);
  return test;
}

// exp(89) is infinite in fp32, and exp(-104) is 0. Query 3 has the score 60 * -3 with every key.
Case large_scores() {
  Case test = {.name = "large scores",
               .hint = "does the largest score begin at -infinity? All scores may be below 0",
               .nan_hint = "is the largest score of all tiles so far subtracted before exp?",
               .keys = 64,
               .scale = 60};
  for (int key = 0; key < test.keys; ++key) test.k[key * test.head_dim] = 3;
  for (int i = 0; i < test.queries; ++i) test.q[i * test.head_dim] = 0;
  for (int d = 0; d < test.head_dim; ++d) test.q[3 * test.head_dim + d] = d == 0 ? -1 : 0;
  return test;
}

// 37 = 16 + 16 + 5.
Case ragged_last_tile() {
  return {.name = "ragged last tile",
          .nan_hint = "the last tile has 5 keys, not 16: behind the last key there is NaN",
          .keys = 37};
}

// Query i sees the 10 keys from 11 * i on: some tiles are wholly hidden, also the first.
Case window() {
  Case test = {.name = "window",
               .nan_hint = "a tile of which a query sees nothing: exp(-inf - -inf) is NaN",
               .keys = 64};
  for (int i = 0; i < test.queries; ++i) {
    test.first[i] = 11 * i;
    test.end[i] = 11 * i + 10;
  }
  return test;
}

// Key 20 holds NaN and infinity. Queries 0 and 1 end before it, 2 and 3 begin after it.
Case hidden_nan() {
  Case test = {.name = "a hidden key holds NaN",
               .nan_hint = "a hidden key was read: a weight of 0 does not help, 0 * NaN is NaN",
               .keys = 48};
  for (int d = 0; d < test.head_dim; ++d) {
    test.k[20 * test.head_dim + d] = std::numeric_limits<float>::infinity();
    test.v[20 * test.head_dim + d] = std::numeric_limits<float>::quiet_NaN();
  }
  test.first = {0, 3, 21, 30};
  test.end = {18, 20, 48, 48};
  return test;
}

// Query 2 sees no key.
Case empty_row() {
  Case test = {.name = "a query that sees nothing",
               .nan_hint = "out must be 0 and lse -infinity: is out divided by a sum of 0?",
               .keys = 32};
  test.first[2] = test.end[2] = 5;
  return test;
}

// The scratch memory must not grow with the number of keys.
bool memory_stays() {
  const char* const name = "memory";
  Case few = {.name = name, .keys = 64}, many = {.name = name, .keys = 1024};
  const long with_few = run(few.problem()).taken, with_many = run(many.problem()).taken;
  if (with_few == with_many) return passes(many);
  std::printf("WRONG  %s: %ld floats of scratch with 64 keys, %ld with 1024\n", name, with_few,
              with_many);
  std::printf("       expected: the same, for one tile of 16 keys\n");
  std::printf(
      "       is there memory for all scores, or new memory for every tile? Take that of one tile "
      "once\n");
  return false;
}

}  // namespace

int main() {
  int failures = 0;
  for (const Case& test : {one_tile(), several_tiles(), growing_maximum(), large_scores(),
                           ragged_last_tile(), window(), hidden_nan(), empty_row()}) {
    failures += passes(test) ? 0 : 1;
  }
  failures += memory_stays() ? 0 : 1;
  std::printf("%d of 9 tests fail\n", failures);
  return failures == 0 ? 0 : 1;
}
