// course/04_patterns/algebra.cpp
// A pattern of our own, built from the algebra: looked at, counted in three ways that must agree,
// run, and compared with the definition.
#include <cstdio>

#include "definition.h"

using namespace keyhole;

namespace {

constexpr int64_t kLength = 200, kHeadDim = 32;

long long count(const Pattern& pattern) { return count_pairs(pattern, kLength, kLength); }

// With q = 0 all scores are 0, and lse = log(sum of exp(0)) is the logarithm of the number of keys:
// the kernel itself says how many pairs it used.
long long count_by_kernel(const Plan& plan) {
  course::Head head = course::random_head(kLength, kLength, kHeadDim);
  std::fill(head.q.begin(), head.q.end(), 0.0f);
  course::Values out, lse;
  course::run_library(head, plan, out, &lse);
  long long pairs = 0;
  for (const float value : lse) pairs += std::lround(std::exp(value));
  return pairs;
}

const char* yes(bool is_so) { return is_so ? "yes" : "no"; }

}  // namespace

int main() {
  // 1. In words: a word sees the three words before it, the first token, and every eighth token
  // before it; but tokens 5 and 6 are padding, which nobody sees.
  const Pattern near = window(3), first = sinks(1), eighth = dilated(8);
  const Pattern padding = sinks(7) & ~sinks(5);  // of the first 7 keys all but the first 5
  const Pattern ours = causal() & (near | first | eighth) & ~padding;
  std::printf("%s\n%s\n", ours.text().c_str(), picture(ours, 20, 20).c_str());

  // 2. Its text says all of it: a pattern can be read from a text, also from a file or in Python.
  std::printf("the text reads back as the same pattern: %s\n\n", yes(parse(ours.text()) == ours));

  // 3. Count it. Sets of pairs obey the laws of sets.
  const long long a = count(near), b = count(eighth), both = count(near & eighth);
  std::printf("%lld in window(3), %lld in dilated(8), %lld in both, %lld in either: %s\n", a, b,
              both, count(near | eighth), yes(a + b - both == count(near | eighth)));
  std::printf("~(a | b) keeps what ~a & ~b keeps: %lld and %lld\n", count(~(near | eighth)),
              count(~near & ~eighth));
  std::printf(
      "strided(8) is a short name for causal & (window(7) | dilated(8)): they differ in "
      "%lld pairs\n\n",
      count((strided(8) & ~(causal() & (window(7) | dilated(8)))) |
            (~strided(8) & causal() & (window(7) | dilated(8)))));

  // 4. Count it again: asked pair by pair, and by the kernel.
  const Plan compiled = plan(ours, kLength, kLength);
  const HeadPattern asked = ours.for_head({.q_len = kLength, .k_len = kLength, .offset = {}});
  long long by_pairs = 0;
  for (int64_t query = 0; query < kLength; ++query) {
    for (int64_t key = 0; key < kLength; ++key) by_pairs += asked.allows(query, key);
  }
  std::printf("%lld of %lld pairs (%.1f%%), %.1f keys a query\n", by_pairs,
              static_cast<long long>(kLength * kLength), 100.0 * by_pairs / (kLength * kLength),
              static_cast<double>(by_pairs) / kLength);
  std::printf("counted by ranges %lld, pair by pair %lld, by the kernel %lld\n\n", count(ours),
              by_pairs, count_by_kernel(compiled));

  // 5. Run it. Query 5 is padding: it has a row of its own, which nobody reads.
  const course::Head head = course::random_head(kLength, kLength, kHeadDim);
  const double error = course::largest_difference(course::by_library(head, compiled),
                                                  course::by_definition(head, ours));
  std::printf("the kernel differs from the definition by less than 1e-5: %s\n", yes(error < 1e-5));

  // 6. A query that is left without keys gets zeros, never NaN.
  const Pattern nothing = ours & ~sinks(4);
  const course::Values out = course::by_library(head, plan(nothing, kLength, kLength));
  std::printf("without the first four keys, query 0 has none, and its output is %g\n",
              static_cast<double>(out[0]));
  return error < 1e-5 ? 0 : 1;
}
