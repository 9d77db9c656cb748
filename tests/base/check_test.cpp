// tests/base/check_test.cpp
#include "base/check.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <sstream>

namespace keyhole {
namespace {

// say() makes no stream for strings and integers; what it writes must be what a stream writes.
template <class Part>
void expect_as_streamed(const Part& part) {
  std::ostringstream stream;
  stream.imbue(std::locale::classic());
  stream << part;
  EXPECT_EQ(say(part), stream.str());
}

TEST(Say, WritesWhatAStreamWrites) {
  expect_as_streamed(0);
  expect_as_streamed(-1);
  expect_as_streamed(1048576);
  expect_as_streamed(std::numeric_limits<int64_t>::min());
  expect_as_streamed(std::numeric_limits<uint64_t>::max());
  expect_as_streamed(uint16_t{65535});
  expect_as_streamed(int8_t{65});  // a letter, as in a stream
  expect_as_streamed(uint8_t{66});
  expect_as_streamed('c');
  expect_as_streamed(true);
  expect_as_streamed(0.1);
  expect_as_streamed(1e300);
  expect_as_streamed(1.f / 3);
  expect_as_streamed("text");
  expect_as_streamed(std::string("more"));
  expect_as_streamed(std::string_view("and more"));
  EXPECT_EQ(say(), "");
  EXPECT_EQ(say("a ", 1, ", ", 2.5, '!'), "a 1, 2.5!");
}

}  // namespace
}  // namespace keyhole
