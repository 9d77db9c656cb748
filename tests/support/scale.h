// tests/support/scale.h
// How many cases to run: all of them, or the percentage that KEYHOLE_TEST_SCALE asks for (sanitizer
// builds are slow; a long run may ask for 1000).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace keyhole::test {

inline int64_t scaled(int64_t count) {
  const char* text = std::getenv("KEYHOLE_TEST_SCALE");
  const int64_t percent = text ? std::atoll(text) : 100;
  return count == 0 ? 0 : std::max<int64_t>(1, count * std::max<int64_t>(percent, 0) / 100);
}

}  // namespace keyhole::test
