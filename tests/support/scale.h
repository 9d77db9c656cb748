// tests/support/scale.h
// How many cases to run: all of them, or the percentage that KEYHOLE_TEST_SCALE asks for (sanitizer
// builds are slow; a long run may ask for 1000).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace keyhole::test {

inline int64_t scale_percent() {
  const char* text = std::getenv("KEYHOLE_TEST_SCALE");
  return text ? std::max<int64_t>(std::atoll(text), 0) : 100;
}

inline int64_t scaled(int64_t count) {
  return count == 0 ? 0 : std::max<int64_t>(1, count * scale_percent() / 100);
}

// For tables of many cases: whether the next one runs. Always the first; of the others so many in a
// hundred, but at least `least_percent`, scattered, so that no column of the table is left out.
class Sample {
 public:
  explicit Sample(int64_t least_percent = 0) : percent_(std::max(scale_percent(), least_percent)) {}

  bool takes_next() {
    const uint32_t index = next_++;
    return index == 0 || int64_t((index * 2654435769u) >> 16) % 100 < percent_;
  }

 private:
  int64_t percent_;
  uint32_t next_ = 0;
};

}  // namespace keyhole::test
