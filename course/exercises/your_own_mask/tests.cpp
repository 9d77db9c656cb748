// course/exercises/your_own_mask/tests.cpp
// Tests of my_pattern in exercise.h: a picture, causality, every rule by itself, the number of
// pairs, and attention that the library computes with it.
#include <cstdio>
#include <string>

#include "exercise.h"
#include "exercises/your_own_mask/judge.h"

using namespace course;

namespace {

Judge judge(const Specification& s) {
  return {s, my_pattern(s.paragraphs, s.neighbours, s.stride)};
}

int run() {
  // Small enough to look at: paragraphs begin at 0, 9 and 14.
  const Specification small = {.paragraphs = {9, 5, 8}, .neighbours = 2, .stride = 8};
  judge(small).draw();

  // 600 tokens: each sees its 8 neighbours before it, and every 16th token before it.
  Judge large = judge({.paragraphs = {137, 1, 212, 100, 150}, .neighbours = 8, .stride = 16});
  std::printf("600 tokens, paragraphs begin at 0, 137, 138, 350 and 450\n");
  large.causality();
  large.rule(kNeighbour, "itself and the 8 neighbours before it",
             "Are the token itself and the 8th neighbour in it? Those of the paragraph before?");
  large.rule(kStart, "the start of its paragraph",
             "A start is a key for all of its paragraph, however far back.");
  large.rule(kStride, "every 16th token before it",
             "The distance is a multiple of 16, however large, and in any paragraph.");
  large.nothing_else();
  large.count();
  large.attention();

  // Other numbers: nothing is written into the pattern that should be an argument.
  Judge other = judge({.paragraphs = {20, 30}, .neighbours = 3, .stride = 10});
  std::printf("50 tokens, paragraphs begin at 0 and 20, 3 neighbours, every 10th token\n");
  other.count();

  const keyhole::PlanReport report = keyhole::plan(large.pattern, 600, 600).explain();
  std::printf("the plan asks the pattern about %s\n",
              report.draws_pair_by_pair ? "each pair: it has a lambda" : "rectangles");
  const int failures = large.failures + other.failures;
  std::printf("%d of %d tests fail\n", failures, large.tests + other.tests);
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const keyhole::Error& error) {
    std::printf("WRONG  the library refused the pattern:\n%s\n", error.what());
    return 1;
  }
}
