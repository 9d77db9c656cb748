// tests/base/normalizer_test.cpp
// A normalizer as text and back, and what is refused.
#include "keyhole/normalizer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "keyhole/error.h"
#include "support/message_of.h"

namespace keyhole {
namespace {

TEST(Normalizer, PrintsAndParsesInverse) {
  const std::pair<Normalizer, const char*> both[] = {
      {softmax(), "softmax"},
      {softmax(32), "softmax(top=32)"},
      {entmax(1.5), "entmax(1.5)"},
      {entmax(1.5, 8), "entmax(1.5, top=8)"},
      {entmax(2), "entmax(2)"},
      {entmax(1.1), "entmax(1.1)"},
      {entmax(4. / 3, 1), "entmax(1.3333333333333333, top=1)"}};
  for (const auto& [normalizer, text] : both) {
    EXPECT_EQ(to_string(normalizer), text);
    EXPECT_EQ(parse_normalizer(text), normalizer) << text;
  }
  EXPECT_EQ(parse_normalizer("  entmax( 1.50 ,top=8 )"), entmax(1.5, 8));
  EXPECT_EQ(entmax(1), softmax());
  EXPECT_EQ(Normalizer{}, softmax());
  EXPECT_TRUE(softmax().is_plain_softmax());
  EXPECT_FALSE(softmax(1).is_plain_softmax());
}

TEST(Normalizer, RefusesWithTheWayOut) {
  const auto refused = [](const char* text) {
    return test::message_of([&] { parse_normalizer(text); });
  };
  EXPECT_EQ(
      refused("sparsemax"),
      "normalizer \"sparsemax\" is unknown; accepted are softmax, softmax(top=32), entmax(1.5) "
      "and entmax(1.5, top=8)");
  for (const char* text : {"", "entmax", "entmax()", "entmax(x)", "entmax(1.5", "entmax(1.5, 8)",
                           "entmax(1.5, top=)", "entmax(1.5, top=2.5)", "entmax(1.5, top=8, top=8)",
                           "softmax(1.5)", "softmax()", "entmax(1.5)x"}) {
    EXPECT_NE(refused(text).find("accepted are softmax"), std::string::npos) << text;
  }
  EXPECT_EQ(refused("entmax(1.5, top=0)"),
            "normalizer \"entmax(1.5, top=0)\": top is 0; it must be positive, or left out for all "
            "keys");
  EXPECT_EQ(test::message_of([] { entmax(2.5); }),
            "attention: alpha is 2.5; accepted are 1 (softmax) to 2 (sparsemax)");
  for (const double alpha : {0.5, 0.999, 2.001, -1.0, double(NAN), double(INFINITY)}) {
    EXPECT_NE(test::message_of([&] { entmax(alpha); }), "no error") << alpha;
  }
  EXPECT_EQ(test::message_of([] { softmax(-3); }),
            "attention: top_k is -3; it must be positive, or 0 for all keys");
}

}  // namespace
}  // namespace keyhole
