// course/exercises/mini_flash_attention/judge.h
// Runs flash_attention on a case and says what is wrong with the first row that differs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "common/tensors.h"
#include "exercise.h"
#include "exercises/mini_flash_attention/definition.h"

namespace course {

// A problem with its tensors. Every query sees all keys until a test says otherwise.
struct Case {
  std::string name;
  // What to look for if no usual mistake gives the result, and if it is NaN or infinite.
  std::string hint = "no usual mistake gives this: are the tests above right?";
  std::string nan_hint =
      "is a key read behind the last one, or scratch before it is written? Is there 0 * infinity?";
  int queries = 4, keys = 16, head_dim = 8, tile = 16;
  float scale = 0.35f;
  std::vector<float> q = random_values(queries * head_dim, 1);
  std::vector<float> k = random_values(keys * head_dim, 2);
  std::vector<float> v = random_values(keys * head_dim, 3);
  std::vector<int> first = std::vector<int>(queries, 0), end = std::vector<int>(queries, keys);

  // The same with the first `count` keys alone.
  Case first_keys(int count) const {
    Case part = *this;
    part.keys = count;
    part.k.resize(count * head_dim);
    part.v.resize(count * head_dim);
    for (int& key : part.end) key = std::min(key, count);
    for (int i = 0; i < queries; ++i) part.first[i] = std::min(first[i], part.end[i]);
    return part;
  }
  // Points into this case. Behind the last key there is NaN, which nobody may read.
  Problem problem() {
    k.resize((keys + tile) * head_dim, std::numeric_limits<float>::quiet_NaN());
    v.resize(k.size(), std::numeric_limits<float>::quiet_NaN());
    return {queries,  keys,     head_dim, tile,         scale,
            q.data(), k.data(), v.data(), first.data(), end.data()};
  }
};

struct Result {
  std::vector<float> out, lse;
  long taken = 0;  // floats of scratch memory
};

inline constexpr float kUnwritten = 12345;

inline Result run(const Problem& problem) {
  Result result;
  result.out.assign(problem.queries * problem.head_dim, kUnwritten);
  result.lse.assign(problem.queries, kUnwritten);
  Scratch scratch;
  flash_attention(problem, scratch, result.out.data(), result.lse.data());
  result.taken = scratch.taken();
  return result;
}

// Never for NaN. Infinities must be equal.
inline bool is_close(double a, double b) {
  return a == b || (std::isfinite(b) && std::abs(a - b) <= 2e-3 * std::max(1.0, std::abs(b)));
}

// The first place where a row of the result differs: an index of out, head_dim for lse, -1 for
// none.
inline int difference(const Result& result, int query, const Row& row) {
  const int head_dim = static_cast<int>(row.out.size());
  for (int d = 0; d < head_dim; ++d) {
    if (!is_close(result.out[query * head_dim + d], row.out[d])) return d;
  }
  return is_close(result.lse[query], row.lse) ? -1 : head_dim;
}

// The likely cause, from what came instead of `want`.
inline std::string cause(const Case& test, const Problem& problem, const Result& result, int query,
                         int place, const Row& want) {
  const float* const out = &result.out[query * test.head_dim];
  const double lse = result.lse[query];
  if ((place < test.head_dim ? out[place] : result.lse[query]) == kUnwritten) {
    return "it was never written";
  }
  if (std::all_of(result.out.begin(), result.out.end(), [](float x) { return x == 0; })) {
    return "all of out is 0: nothing is computed yet";
  }
  if (place == test.head_dim) {
    if (is_close(lse, want.lse - want.largest_score)) {
      return "this is log(sum): is the largest score added?";
    }
    if (is_close(lse, want.largest_score)) return "this is the largest score: is log(sum) added?";
    if (is_close(lse, want.lse / std::log(2))) return "this is a logarithm to base 2";
    return std::isfinite(want.lse) ? "lse is the largest score + log(sum)"
                                   : "nothing is seen: the sum is 0, and lse is -infinity";
  }
  if (!std::isfinite(out[place])) return test.nan_hint;
  for (const Explanation& known : kExplanations) {
    Row row = row_with(known.mistake, problem, query);
    row.lse = lse;  // out says enough
    if (difference(result, query, row) == -1) {
      return std::string("this is what comes if ") + known.text;
    }
  }
  return test.hint;
}

inline bool passes(Case test) {
  const Problem problem = test.problem();
  const Result result = run(problem);
  for (int query = 0; query < test.queries; ++query) {
    const Row want = row_with(Mistake::none, problem, query);
    const int place = difference(result, query, want);
    if (place == -1) continue;

    // A cause is explained once.
    const std::string text = cause(test, problem, result, query, place, want);
    static std::string last_text;
    if (text == last_text) {
      std::printf("WRONG  %s: row %d, the same\n", test.name.c_str(), query);
      return false;
    }
    last_text = text;
    int right = 0;  // with so many keys alone the row is right
    for (int keys = test.tile; keys < test.keys; keys += test.tile) {
      Case part = test.first_keys(keys);
      const Problem fewer = part.problem();
      if (difference(run(fewer), query, row_with(Mistake::none, fewer, query)) != -1) break;
      right = keys;
    }
    std::printf("WRONG  %s: row %d differs from the definition from key %d on\n", test.name.c_str(),
                query, right);
    if (place < test.head_dim) {
      std::printf("       out[%d][%d]: expected %.4f, came %.4f\n", query, place, want.out[place],
                  result.out[query * test.head_dim + place]);
    } else {
      std::printf("       lse[%d]: expected %.4f, came %.4f (out is right)\n", query, want.lse,
                  result.lse[query]);
    }
    std::printf("       %s\n", text.c_str());
    return false;
  }
  std::printf("ok     %s\n", test.name.c_str());
  return true;
}

}  // namespace course
