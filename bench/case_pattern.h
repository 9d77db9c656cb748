// bench/case_pattern.h
// The text of a case and its lengths in, its pattern out. Besides what parse() reads there is
//   repeated(rows, columns, PATTERN)
// that pattern's first rows x columns pairs, again and again: tiles that are all partial and share
// a few bitmaps. bench/peers/attention.py has the same word.
#pragma once

#include <cstdint>
#include <regex>
#include <string>
#include <vector>

#include "base/int_math.h"
#include "keyhole/pattern.h"

namespace keyhole {

inline Pattern case_pattern(const std::string& text, int64_t q_len, int64_t k_len) {
  std::smatch found;
  if (!std::regex_match(text, found, std::regex(R"(repeated\((\d+), (\d+), (.+)\))"))) {
    return parse(text);
  }
  const int64_t rows = std::stoll(found[1]), columns = std::stoll(found[2]);
  const Shape shape{.q_len = rows, .k_len = columns, .offset = 0};
  const HeadPattern repeated = parse(found[3].str()).for_head(shape);
  std::vector<uint8_t> pairs;
  for (int64_t q = 0; q < rows; ++q) {
    for (int64_t k = 0; k < columns; ++k) pairs.push_back(repeated.allows(q, k));
  }
  const int64_t across = ceil_div(k_len, columns);
  std::vector<int64_t> offsets = {0}, keys;
  for (int64_t row = 0; row < ceil_div(q_len, rows); ++row) {
    for (int64_t key = 0; key < across; ++key) keys.push_back(key);
    offsets.push_back(int64_t(keys.size()));
  }
  const std::vector<int64_t> same_bitmap(keys.size(), 0);
  return bitmaps(rows, columns, offsets, keys, same_bitmap, pairs);
}

}  // namespace keyhole
