// tests/support/per_head.h
// The text of a pattern for each head, of which neighbours mostly have the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace keyhole::test {

struct Heads {
  int64_t count;
  const char* pattern;
};
inline std::string per_head_text(const std::vector<Heads>& all) {
  std::string text;
  for (const Heads& heads : all) {
    for (int64_t i = 0; i < heads.count; ++i) {
      text += (text.empty() ? "" : ", ") + std::string(heads.pattern);
    }
  }
  return "per_head(" + text + ")";
}

}  // namespace keyhole::test
