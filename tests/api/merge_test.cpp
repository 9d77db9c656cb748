// tests/api/merge_test.cpp
// merge at its edges: empty rows are neutral, and a NaN is neither lost nor made.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "keyhole/attention.h"
#include "support/message_of.h"

namespace keyhole {
namespace {

struct Row {
  float out, lse;
};

Row merged(Row into, Row from) {
  const TensorView into_out(&into.out, DType::f32, {1, 1, 1, 1});
  const TensorView into_lse(&into.lse, DType::f32, {1, 1, 1});
  const TensorView from_out(&from.out, DType::f32, {1, 1, 1, 1});
  const TensorView from_lse(&from.lse, DType::f32, {1, 1, 1});
  merge(into_out, into_lse, from_out, from_lse);
  return into;
}

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Merge, WeighsBySumOfExponentials) {
  const Row row = merged({1, std::log(3.0f)}, {5, std::log(1.0f)});
  EXPECT_NEAR(row.out, 2, 1e-6);
  EXPECT_NEAR(row.lse, std::log(4.0f), 1e-6);
}

TEST(Merge, EmptyRowsAreNeutral) {
  for (const auto& [a, b] :
       {std::pair{Row{3, 0.5f}, Row{9, -kInf}}, {Row{9, -kInf}, Row{3, 0.5f}}}) {
    const Row row = merged(a, b);
    EXPECT_EQ(row.out, 3);
    EXPECT_EQ(row.lse, 0.5f);
  }
  const Row empty =
      merged({kNan, -kInf}, {kNan, -kInf});  // what an empty row holds does not matter
  EXPECT_EQ(empty.out, 0);
  EXPECT_EQ(empty.lse, -kInf);
}

TEST(Merge, KeepsANanFromEitherSide) {
  for (const auto& [a, b] : {std::pair{Row{kNan, kNan}, Row{1, -kInf}},
                             {Row{0, -kInf}, Row{kNan, kNan}},
                             {Row{kNan, kNan}, Row{1, 0}},
                             {Row{1, 0}, Row{kNan, kNan}}}) {
    const Row row = merged(a, b);
    EXPECT_TRUE(std::isnan(row.out)) << a.lse << " and " << b.lse;
    EXPECT_TRUE(std::isnan(row.lse)) << a.lse << " and " << b.lse;
  }
}

TEST(Merge, RefusesWhatDoesNotAddUpByName) {
  Row into{1, 0}, from{2, 0};
  const TensorView out(&into.out, DType::f32, {1, 1, 1, 1}), lse(&into.lse, DType::f32, {1, 1, 1});
  const TensorView other(&from.out, DType::f32, {1, 1, 1, 1});
  const TensorView other_lse(&from.lse, DType::f32, {1, 1, 1});
  EXPECT_EQ(test::message_of([&] { merge(out, lse, other, other_lse, nullptr, entmax(1.5, 8)); }),
            "attention: merge joins results over different keys, and those of entmax(1.5, top=8) "
            "cannot be joined; attend to all keys in one call");
  EXPECT_EQ(into.out, 1);
}

}  // namespace
}  // namespace keyhole
