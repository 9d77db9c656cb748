// tests/kernels/tma_tensors_test.cpp
// What TMA will read of a tensor, worked out on the host: every row of every class is where it
// should be, nothing beyond the last row is inside, and the driver's rules are kept.
#include "kernels/sm90/tma_tensors.h"

#include <gtest/gtest.h>

#include <optional>

#include "base/check.h"
#include "plan/residues.h"

namespace keyhole {
namespace {

using sm90::TmaTensor;
using sm90::TmaTensors;

// The address of an element at these coordinates; none: it lies outside and arrives as zero.
std::optional<uintptr_t> address_at(const TmaTensor& rows, const int64_t (&at)[sm90::kBoxDims]) {
  uintptr_t address = reinterpret_cast<uintptr_t>(rows.base);
  for (int d = 0; d < sm90::kBoxDims; ++d) {
    if (at[d] < 0 || at[d] >= int64_t(rows.dims[d])) return std::nullopt;
    address += uintptr_t(at[d]) * (d == 0 ? 2 : rows.strides[d - 1]);
  }
  return address;
}

// The rules of cuTensorMapEncodeTiled.
void expect_legal(const TmaTensor& rows) {
  EXPECT_NE(rows.base, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(rows.base) % 16, 0u);
  for (const uint64_t dim : rows.dims) EXPECT_TRUE(dim >= 1 && dim <= uint64_t{1} << 32) << dim;
  for (const uint64_t stride : rows.strides) {
    EXPECT_TRUE(stride % 16 == 0 && stride < uint64_t{1} << 40) << stride;
  }
}

struct Layout {
  const char* name;
  int64_t batch_stride, head_stride, row_stride;
};

// Memory that is never touched: addresses are all that counts.
void* const kBase = reinterpret_cast<void*>(uintptr_t{1} << 32);
constexpr int64_t kBatch = 2, kHeads = 3, kColumns = 40;

void expect_rows(const TensorView& tensor, int32_t stride, int64_t first, int64_t num_rows) {
  const TmaTensors tensors = sm90::tma_tensors(tensor, stride);
  const bool is_longer = first < tensors.num_longer;
  const TmaTensor& rows = is_longer ? tensors.longer : tensors.shorter;
  expect_legal(rows);
  const int64_t class_at = first - (is_longer ? tensors.longer_origin : tensors.shorter_origin);
  for (int64_t batch = 0; batch < tensor.shape[0]; ++batch) {
    for (int64_t head = 0; head < tensor.shape[1]; ++head) {
      // And as far beyond the last one as a box may reach.
      for (int64_t row = 0; row < num_rows + 256; row += row < num_rows + 2 ? 1 : 23) {
        for (const int64_t col : {int64_t{0}, tensor.shape[3] - 1, tensor.shape[3], int64_t{63}}) {
          const auto got = address_at(rows, {col, row, class_at, head, batch});
          const bool is_inside = row < num_rows && col < tensor.shape[3];
          ASSERT_EQ(got.has_value(), is_inside) << "row " << row << ", column " << col;
          if (!is_inside) continue;
          const int64_t index = first + stride * row;
          ASSERT_LT(index, tensor.shape[2]);
          ASSERT_EQ(*got, reinterpret_cast<uintptr_t>(kBase) +
                              2 * uintptr_t(batch * tensor.strides[0] + head * tensor.strides[1] +
                                            index * tensor.strides[2] + col));
        }
      }
    }
  }
}

TEST(TmaTensors, EveryRowOfEveryClassAndNoneBeyond) {
  int64_t num_classes = 0, num_empty = 0;
  for (const int64_t length : {0, 1, 2, 7, 63, 64, 65, 100, 129}) {
    const Layout layouts[] = {
        {"bhsd", kHeads * length * kColumns, length * kColumns, kColumns},
        {"bshd", length * kHeads * kColumns, kColumns, kHeads * kColumns},
        {"padded rows", kHeads * (length * 48 + 8), length * 48 + 8, 48},
    };
    for (const Layout& layout : layouts) {
      const TensorView tensor(kBase, DType::bf16, {kBatch, kHeads, length, kColumns},
                              {layout.batch_stride, layout.head_stride, layout.row_stride, 1});
      for (const int32_t stride : {1, 2, 3, 5, 8, 64, 1000}) {
        const Shape shape{.q_len = length, .k_len = length};
        for (int32_t c = 0; c < stride; ++c) {
          const ResidueClass residue = residue_class(shape, stride, c);
          SCOPED_TRACE(say(length, " rows, ", layout.name, ", class ", c, " of ", stride));
          expect_rows(tensor, stride, residue.first_k, residue.num_k);
          if (HasFatalFailure()) return;
          ++num_classes;
          num_empty += residue.num_k == 0;
          if (stride == 1000 && c == 200) c = 900;
        }
      }
    }
  }
  EXPECT_GE(num_classes, 5000);
  EXPECT_GE(num_empty, 1000);
}

// The stride of a dimension of one element may be anything.
TEST(TmaTensors, StridesThatAreNeverFollowedAreReplaced) {
  for (const int64_t odd : {int64_t{0}, int64_t{-7}, int64_t{3}, int64_t{1} << 50}) {
    const TensorView tensor(kBase, DType::f16, {1, 1, 1, kColumns}, {odd, odd, odd, 1});
    EXPECT_EQ(sm90::why_no_tma(tensor), "");
    for (const int32_t stride : {1, 7}) expect_rows(tensor, stride, 0, 1);
  }
}

TEST(TmaTensors, WhatTmaCannotReadIsSaid) {
  const auto why = [](std::initializer_list<int64_t> shape,
                      std::initializer_list<int64_t> strides) {
    return sm90::why_no_tma(TensorView(kBase, DType::bf16, shape, strides));
  };
  EXPECT_EQ(why({2, 4, 100, 64}, {25600, 6400, 64, 1}), "");
  EXPECT_EQ(why({2, 4, 100, 64}, {0, 6400, 64, 1}),
            "reads tensors whose strides are positive, not 0 for batch");
  EXPECT_EQ(why({2, 4, 100, 64}, {6400, 0, 64, 1}),
            "reads tensors whose strides are positive, not 0 for heads");
  EXPECT_EQ(why({2, 4, 100, 64}, {25600, 6400, -64, 1}),
            "reads tensors whose strides are positive, not -64 for length");
  EXPECT_EQ(why({1, 4, 100, 64}, {0, 6400, 64, 1}), "") << "nobody follows that stride";
  // 2^39 elements are 2^40 bytes.
  EXPECT_EQ(why({2, 1, 1, 64}, {(int64_t{1} << 39) - 8, 64, 64, 1}), "");
  EXPECT_EQ(why({2, 1, 1, 64}, {int64_t{1} << 39, 64, 64, 1}),
            "takes strides below 2^40 bytes, not 549755813888 elements for batch");
  // A class may step from the first row to the last.
  EXPECT_EQ(why({1, 1, 1025, 64}, {64, 64, (int64_t{1} << 29) - 8, 1}), "");
  EXPECT_EQ(why({1, 1, 1025, 64}, {64, 64, int64_t{1} << 29, 1}),
            "reads heads of less than 2^40 bytes, not 1025 rows in steps of 536870912 elements");
}

}  // namespace
}  // namespace keyhole
