// course/exercises/your_own_mask/specification.h
// The specification of the pattern, rule by rule, painted into a matrix.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace course {

struct Specification {
  std::vector<int64_t> paragraphs;  // how many tokens each has
  int64_t neighbours = 8, stride = 16;

  int64_t length() const {
    return std::accumulate(paragraphs.begin(), paragraphs.end(), int64_t{0});
  }
  // For each token, the first token of its paragraph.
  std::vector<int64_t> starts() const {
    std::vector<int64_t> result;
    for (const int64_t tokens : paragraphs) {
      result.insert(result.end(), tokens, static_cast<int64_t>(result.size()));
    }
    return result;
  }
};

// Which rules want a pair; 0: none does, the pair must not attend.
enum Rule : uint8_t { kNeighbour = 1, kStart = 2, kStride = 4 };

struct Wanted {
  int64_t length;
  std::vector<uint8_t> rules;  // [length][length]
  uint8_t& at(int64_t query, int64_t key) { return rules[query * length + key]; }
  uint8_t at(int64_t query, int64_t key) const { return rules[query * length + key]; }
  int64_t pairs() const {
    return std::count_if(rules.begin(), rules.end(), [](uint8_t rule) { return rule != 0; });
  }
};

inline Wanted paint(const Specification& specification) {
  const int64_t length = specification.length();
  Wanted wanted{length, std::vector<uint8_t>(length * length)};
  const std::vector<int64_t> starts = specification.starts();
  for (int64_t query = 0; query < length; ++query) {
    for (int64_t back = 0; back <= specification.neighbours && back <= query; ++back) {
      wanted.at(query, query - back) |= kNeighbour;
    }
    wanted.at(query, starts[query]) |= kStart;
    for (int64_t key = query - specification.stride; key >= 0; key -= specification.stride) {
      wanted.at(query, key) |= kStride;
    }
  }
  return wanted;
}

}  // namespace course
