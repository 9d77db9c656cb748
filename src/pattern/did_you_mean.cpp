// src/pattern/did_you_mean.cpp
// From a misspelt word and the words that exist to the one that was probably meant.
#include "pattern/did_you_mean.h"

#include <algorithm>
#include <array>
#include <vector>

namespace keyhole {

// The restricted Damerau-Levenshtein distance: a swapped pair is not edited again. Three rows of
// the table are enough, because a swap looks back two rows.
int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) above[j] = int(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = int(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int replaced = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replaced, above[j] + 1, row[j - 1] + 1});
      const bool is_swap = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (is_swap) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(above);
    above.swap(row);
  }
  return above[b.size()];
}

std::string_view did_you_mean(std::string_view word, std::span<const std::string_view> words) {
  // Two edits turn any word of two letters into any other, so short ones get one.
  const int limit = word.size() < 4 ? 1 : std::max(2, int(word.size()) / 3);
  std::string_view nearest;
  int least = limit + 1;
  for (const std::string_view candidate : words) {
    const int distance = edit_distance(word, candidate);
    if (distance < least) nearest = candidate, least = distance;
  }
  return nearest;
}

}  // namespace keyhole
