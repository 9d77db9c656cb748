// course/exercises/your_own_mask/judge.h
// Compares a pattern with the specification, pair by pair, and says what differs.
#pragma once

#include <keyhole/keyhole.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "common/tensors.h"
#include "exercises/your_own_mask/specification.h"

namespace course {

struct Judge {
  Specification specification;
  keyhole::Pattern pattern;
  int64_t length = specification.length();
  std::vector<int64_t> starts = specification.starts();
  Wanted wanted = paint(specification);
  keyhole::HeadPattern got = pattern.for_head({.q_len = length, .k_len = length, .offset = {}});
  int tests = 0, failures = 0;

  // One line of result. Returns `is_right`.
  bool say(bool is_right, const char* name) {
    ++tests;
    failures += is_right ? 0 : 1;
    std::printf("%s %s\n", is_right ? "ok    " : "WRONG ", name);
    return is_right;
  }

  // Wanted and got, side by side.
  void draw() const {
    std::printf("%-*s yours (+ too many, - missing)\n", int(2 * length + 2), "wanted");
    for (int64_t query = 0; query < length; ++query) {
      std::string left, right;
      for (int64_t key = 0; key < length; ++key) {
        const bool want = wanted.at(query, key) != 0, have = got.allows(query, key);
        left += want ? "# " : ". ";
        right += want && have ? " #" : want ? " -" : have ? " +" : " .";
      }
      std::printf("%s  %s\n", left.c_str(), right.c_str());
    }
    std::printf("\n");
  }

  // Expects that is_wrong(query, key) is true for no pair. `what` says which pairs these are,
  // `cause` why there may be some.
  template <class IsWrong>
  void expect_none(const char* name, const char* what, const char* cause, IsWrong is_wrong) {
    long count = 0;
    int64_t query = 0, key = 0;
    for (int64_t q = 0; q < length; ++q) {
      for (int64_t k = 0; k < length; ++k) {
        if (!is_wrong(q, k)) continue;
        if (++count > 1) continue;
        query = q;
        key = k;
      }
    }
    if (say(count == 0, name)) return;
    std::printf("       expected 0, came %ld: pairs %s\n", count, what);
    std::printf("       the first: query %d, key %d, k - q = %d. %s\n", int(query), int(key),
                int(key - query), cause);
  }

  void causality() {
    expect_none("causality", "with a later token", "Is all of it combined with causal()?",
                [&](int64_t q, int64_t k) { return k > q && got.allows(q, k); });
  }

  void rule(Rule rule, const char* name, const char* cause) {
    expect_none(name, "of this rule that are missing", cause, [&](int64_t q, int64_t k) {
      return (wanted.at(q, k) & rule) && !got.allows(q, k);
    });
  }

  void nothing_else() {
    const auto too_many = [this](int64_t q, int64_t k) {
      return k <= q && !wanted.at(q, k) && got.allows(q, k);
    };
    // A cause is named if it fits all of these pairs.
    const char* const causes[] = {"One neighbour too many?",
                                  "All have the start of a paragraph: is it the query's own?",
                                  "Is the stride counted from token 0, not from the query?",
                                  "Does a query see more of its paragraph than the start?"};
    bool fits[] = {true, true, true, true};
    for (int64_t q = 0; q < length; ++q) {
      for (int64_t k = 0; k <= q; ++k) {
        if (!too_many(q, k)) continue;
        fits[0] &= q - k == specification.neighbours + 1;
        fits[1] &= starts[k] == k || starts[q] == q;
        fits[2] &= k % specification.stride == 0;
        fits[3] &= starts[q] == starts[k];
      }
    }
    const auto cause = std::find(fits, fits + 4, true) - fits;
    expect_none("nothing else", "with an earlier token that no rule names",
                cause < 4 ? causes[cause] : "The picture may tell why.", too_many);
  }

  void count() {
    const long want = wanted.pairs(), came = keyhole::count_pairs(pattern, length, length);
    if (say(want == came, "number of pairs")) return;
    std::printf("       expected %ld, came %ld: some pairs are %s\n", want, came,
                came > want ? "too many" : "missing");
  }

  // What the library computes with the pattern, against the definition with the specification.
  void attention() {
    const int64_t head_dim = 16;
    const auto q = random_values(length * head_dim, 1), k = random_values(length * head_dim, 2),
               v = random_values(length * head_dim, 3);
    std::vector<float> out(q.size());
    const auto view = [&](const std::vector<float>& data) {
      return keyhole::TensorView(data.data(), keyhole::DType::f32, {1, 1, length, head_dim});
    };
    keyhole::attention_forward(view(q), view(k), view(v), keyhole::plan(pattern, length, length),
                               view(out));
    int64_t wrong = 0, first = 0;
    double want = 0, came = 0;
    for (int64_t query = length - 1; query >= 0; --query) {
      double sum = 0, weighted = 0;  // of the first column
      for (int64_t key = 0; key < length; ++key) {
        double score = 0;
        for (int64_t d = 0; d < head_dim; ++d) {
          score += double(q[query * head_dim + d]) * k[key * head_dim + d] / 4;
        }
        const double weight = wanted.at(query, key) ? std::exp(score) : 0;
        sum += weight;
        weighted += weight * v[key * head_dim];
      }
      if (std::abs(weighted / sum - out[query * head_dim]) < 1e-4) continue;
      ++wrong;
      first = query;  // the last of them is the first row: rows are taken from the end
      want = weighted / sum;
      came = out[query * head_dim];
    }
    if (say(wrong == 0, "attention by the library")) return;
    std::printf(
        "       %d of %d rows differ. The first: query %d, out[0] expected %.4f, came %.4f\n",
        int(wrong), int(length), int(first), want, came);
    std::printf("       a row is right when all its pairs are: see above\n");
  }
};

}  // namespace course
