// tests/gpu/merge_test.cpp
// merge on a GPU: rows weigh by their lse, empty rows are neutral whatever they hold, and the parts
// of a pattern merge into the whole.
#include <cmath>
#include <limits>

#include "base/dtype.h"
#include "gpu/gpu_problem.h"

namespace keyhole::test {
namespace {

using GpuMerge = GpuTest;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The first columns of a wider tensor: rows that do not follow one another.
TensorView first_columns(TensorView view, int64_t count) {
  view.shape[3] = count;
  return view;
}

struct Side {
  GpuTensor out, lse;
  Side(DType dtype, int64_t columns, Random& random)
      : out(dtype, {2, 3, 37, columns}), lse(DType::f32, {2, 3, 37}) {
    out.draw(random);
    lse.draw(random);
  }
  // Rows `offset`, `offset` + step, ... attended to nothing, and hold NaN.
  void empty_rows(int64_t offset, int64_t step) const {
    std::vector<float> numbers = out.read(), sums = lse.read();
    const size_t columns = numbers.size() / sums.size();
    for (size_t row = size_t(offset); row < sums.size(); row += size_t(step)) {
      sums[row] = -kInf;
      for (size_t x = 0; x < columns; ++x) numbers[row * columns + x] = kNan;
    }
    out.write(numbers);
    lse.write(sums);
  }
};

TEST_F(GpuMerge, WeighsRowsByTheirLse) {
  constexpr int64_t kColumns = 45, kWidth = 48;  // of each row, 45 of 48 numbers are merged
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    SCOPED_TRACE(to_string(dtype));
    Random random(7);
    const Side into(dtype, kWidth, random), from(dtype, kWidth, random);
    into.empty_rows(0, 3);
    from.empty_rows(1, 2);  // row 3 is empty on both sides
    const std::vector<float> a = into.out.read(), b = from.out.read();
    const std::vector<float> a_lse = into.lse.read(), b_lse = from.lse.read();
    const Stream stream;
    synchronize(kGpu);
    merge(first_columns(into.out.view(), kColumns), into.lse.view(),
          first_columns(from.out.view(), kColumns), from.lse.view(), stream.get());
    synchronize(kGpu);
    const std::vector<float> got = into.out.read(), got_lse = into.lse.read();
    for (size_t row = 0; row < a_lse.size(); ++row) {
      const double a_sum = std::exp(double(a_lse[row])), b_sum = std::exp(double(b_lse[row]));
      const double want_lse = std::log(a_sum + b_sum);
      if (a_sum + b_sum == 0) {
        EXPECT_EQ(got_lse[row], -kInf) << row;
      } else {
        EXPECT_NEAR(got_lse[row], want_lse, 1e-5) << row;
      }
      for (size_t x = 0; x < size_t{kWidth}; ++x) {
        const size_t at = row * size_t{kWidth} + x;
        if (x >= size_t{kColumns}) {
          EXPECT_TRUE(got[at] == a[at] || (std::isnan(got[at]) && std::isnan(a[at]))) << row;
          continue;
        }
        double want = 0;
        if (a_sum > 0) want += a_sum / (a_sum + b_sum) * double(a[at]);
        if (b_sum > 0) want += b_sum / (a_sum + b_sum) * double(b[at]);
        EXPECT_NEAR(got[at], want, 2 * rounding_unit(dtype) * std::abs(want) + 1e-5) << row;
      }
    }
  }
}

TEST_F(GpuMerge, PartsMakeTheWhole) {
  constexpr int64_t kLength = 300;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    SCOPED_TRACE(to_string(dtype));
    const ProblemSizes sizes{.q_len = kLength, .k_len = kLength, .dtype = dtype, .has_sink = false};
    // The same seed gives the same inputs.
    const GpuProblem whole(sizes), near(sizes), far(sizes);
    whole.forward(plan(causal(), kLength, kLength));
    near.forward(plan(causal() & window(40), kLength, kLength));
    far.forward(plan(causal() & ~window(40), kLength, kLength));  // the first rows are empty
    merge(near.out.view(), near.lse.view(), far.out.view(), far.lse.view());
    const std::vector<float> want = whole.out.read(), got = near.out.read();
    const std::vector<float> want_lse = whole.lse.read(), got_lse = near.lse.read();
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], 8 * rounding_unit(dtype) + 1e-5) << i;
    }
    for (size_t i = 0; i < want_lse.size(); ++i) ASSERT_NEAR(got_lse[i], want_lse[i], 1e-4) << i;
  }
}

}  // namespace
}  // namespace keyhole::test
