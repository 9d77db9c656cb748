// tests/base/tensor_test.cpp
// TensorView: strides, sizes that do not fit, and the texts that error messages show.
#include "keyhole/tensor.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "keyhole/error.h"
#include "keyhole/version.h"
#include "support/message_of.h"

namespace keyhole::test {
namespace {

TEST(TensorView, ElementsFollowOneAnother) {
  const float data[24] = {};
  const TensorView tensor(data, DType::f32, {1, 2, 3, 4});
  EXPECT_EQ(tensor.data, data);
  EXPECT_TRUE(tensor.is_given());
  EXPECT_EQ(tensor.num_elements(), 24);
  EXPECT_EQ(std::vector<int64_t>(tensor.strides, tensor.strides + 4),
            (std::vector<int64_t>{24, 12, 4, 1}));
  EXPECT_EQ(to_string(tensor), "f32 [1, 2, 3, 4]");

  const TensorView other_order(data, DType::f16, {1, 2, 3, 4}, {24, 4, 8, 1});
  EXPECT_EQ(other_order.strides[2], 8);
}

TEST(TensorView, MayBeEmptyOrAbsent) {
  const TensorView empty(nullptr, DType::bf16, {2, 0, 5});
  EXPECT_TRUE(empty.is_given());
  EXPECT_EQ(empty.num_elements(), 0);
  EXPECT_EQ(empty.strides[0], 5);
  EXPECT_FALSE(TensorView().is_given());
  EXPECT_EQ(TensorView().num_elements(), 0);
  EXPECT_EQ(to_string(TensorView()), "no tensor");
}

TEST(TensorView, RefusesShapesThatCannotBe) {
  const int64_t huge = int64_t{1} << 40;
  EXPECT_EQ(message_of([] { TensorView(nullptr, DType::f32, {1, 1, 1, 1, 1}); }),
            "TensorView: got 5 dimensions; a tensor has 1 to 4");
  EXPECT_EQ(message_of([] { TensorView(nullptr, DType::f32, {2, -1}); }),
            "TensorView: dimension 1 is -1; sizes must be 0 or more");
  EXPECT_EQ(message_of([] { TensorView(nullptr, DType::f32, {2, 2}, {1}); }),
            "TensorView: got 2 sizes but 1 strides; each dimension needs one of each");
  EXPECT_NE(message_of([&] { TensorView(nullptr, DType::f32, {huge, huge, huge}); }), "no error");
  const TensorView strided(nullptr, DType::f32, {huge, huge}, {0, 1});
  EXPECT_EQ(message_of([&] { strided.num_elements(); }),
            "tensor size: 1099511627776 x 1099511627776 does not fit 64 bits");
}

TEST(Names, OfErrorKindsAndVersion) {
  EXPECT_STREQ(to_string(ErrorKind::usage), "usage");
  EXPECT_STREQ(to_string(ErrorKind::unsupported), "unsupported");
  EXPECT_STREQ(to_string(ErrorKind::device), "device");
  EXPECT_STREQ(to_string(ErrorKind::internal), "internal");
  EXPECT_EQ(version(), std::to_string(kVersionMajor) + "." + std::to_string(kVersionMinor) + "." +
                           std::to_string(kVersionPatch));
}

}  // namespace
}  // namespace keyhole::test
