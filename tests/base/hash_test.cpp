// tests/base/hash_test.cpp
// FNV-1a against its published values.
#include "base/hash.h"

#include <gtest/gtest.h>

namespace keyhole {
namespace {

TEST(Hash, AgreesWithThePublishedValues) {
  EXPECT_EQ(to_hex(fnv1a64("", 0)), "cbf29ce484222325");
  EXPECT_EQ(to_hex(fnv1a64("a", 1)), "af63dc4c8601ec8c");
  EXPECT_EQ(to_hex(fnv1a64("foobar", 6)), "85944171f73967e8");
}

TEST(Hash, NumbersAreLittleEndianBytes) {
  Fnv1a64 hash;
  hash.add(uint64_t{0x0807060504030201});
  EXPECT_EQ(hash.value(), fnv1a64("\1\2\3\4\5\6\7\10", 8));
}

}  // namespace
}  // namespace keyhole
