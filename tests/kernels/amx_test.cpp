// tests/kernels/amx_test.cpp
// The tile registers: products of small integers are exact, and calls go where they are faster.
// What the kernels make of them is tested with the table.
#include "kernels/cpu/amx.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/dtype.h"
#include "keyhole/pattern.h"
#include "keyhole/plan.h"
#include "runtime/dispatch.h"
#include "runtime/list_facts.h"
#include "runtime/registry.h"

namespace keyhole {
namespace {

constexpr const char* kWhyNot = "this processor or system has no AMX for the dtype";

template <class Storage>
void expect_exact_products() {
  const DType dtype = Traits<Storage>::dtype;
  if (!cpu::amx::multiplies(dtype)) GTEST_SKIP() << to_string(dtype) << ": " << kWhyNot;
  constexpr int64_t kMost = 80, kMostDepth = 192, kPad = 16;
  std::vector<Storage> a(size_t(kMost * (kMostDepth + kPad)));
  std::vector<uint32_t> b(size_t(kMostDepth / 2 * (kMost + kPad)));
  const auto a_at = [](int64_t r, int64_t x) { return int((r * 7 + x * 3) % 11) - 5; };
  const auto b_at = [](int64_t x, int64_t c) { return int((x * 5 + c) % 13) - 6; };
  const auto bits = [](int x) { return uint32_t{Traits<Storage>::from(float(x)).bits}; };
  const int64_t a_stride = kMostDepth + kPad, b_stride = kMost + kPad;
  for (int64_t r = 0; r < kMost; ++r) {
    for (int64_t x = 0; x < kMostDepth; ++x)
      a[size_t(r * a_stride + x)] = {uint16_t(bits(a_at(r, x)))};
  }
  for (int64_t x = 0; x < kMostDepth; x += 2) {
    for (int64_t c = 0; c < kMost; ++c) {
      b[size_t(x / 2 * b_stride + c)] = bits(b_at(x, c)) | bits(b_at(x + 1, c)) << 16;
    }
  }
  const cpu::amx::Tiles tiles;
  for (int64_t rows = 16; rows <= kMost; rows += 16) {
    for (int64_t cols = 16; cols <= kMost; cols += 16) {
      for (int64_t depth = 32; depth <= kMostDepth; depth += 32) {
        std::vector<float> c(size_t(rows * cols), 3);
        const bool adds = (rows + cols) % 32 == 0;
        cpu::amx::multiply(dtype, {.rows = rows,
                                   .cols = cols,
                                   .depth = depth,
                                   .a = reinterpret_cast<const uint16_t*>(a.data()),
                                   .a_stride = a_stride,
                                   .b = b.data(),
                                   .b_stride = b_stride,
                                   .c = c.data(),
                                   .c_stride = cols,
                                   .accumulate = adds});
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t col = 0; col < cols; ++col) {
            int want = adds ? 3 : 0;
            for (int64_t x = 0; x < depth; ++x) want += a_at(r, x) * b_at(x, col);
            ASSERT_EQ(c[size_t(r * cols + col)], float(want))
                << rows << " x " << cols << " x " << depth << " at " << r << ", " << col;
          }
        }
      }
    }
  }
}

TEST(Amx, MultipliesBf16Exactly) { expect_exact_products<BFloat16>(); }
TEST(Amx, MultipliesF16Exactly) { expect_exact_products<Half>(); }

std::string kernel_for(const char* pattern, Operation operation) {
  const Plan made = plan(parse(pattern), Shape{.heads = 2, .q_len = 2048, .k_len = 2048});
  const PlanFacts facts(made);
  Request request{.backend = "auto",
                  .operation = operation,
                  .dtype = DType::bf16,
                  .head_dim = 64,
                  .v_head_dim = 64};
  request.lists = &facts;
  return choose(kernel_table(), request).name;
}

// Four times the pairs in tiles of 32 x 32: vectors are faster in tiles of 16 x 16.
TEST(Amx, ScatteredSmallBlocksAreLeftToVectors) {
  const bool is_listed = std::ranges::any_of(
      kernel_table(), [](const KernelEntry& kernel) { return kernel.name.ends_with(".bf16.amx"); });
  if (!is_listed) GTEST_SKIP() << kWhyNot;
  for (const Operation operation : {Operation::forward, Operation::backward}) {
    const std::string on_vectors = say("cpu.", to_string(operation), ".bf16");
    EXPECT_EQ(kernel_for("causal", operation), on_vectors + ".amx");
    EXPECT_EQ(kernel_for("blocks(16)", operation), on_vectors + ".amx");
    EXPECT_EQ(kernel_for("random(16, 4, 1)", operation), on_vectors);
  }
}

}  // namespace
}  // namespace keyhole
