// tests/select/row_bits_test.cpp
// The bits of a row are the pairs of its pattern, whichever tiles and parts the plan has.
#include "kernels/cpu/row_bits.h"

#include <gtest/gtest.h>

#include <vector>

#include "plan/plan_state.h"
#include "support/allowed_pairs.h"

namespace keyhole::test {
namespace {

TEST(RowBits, AreThePairsOfThePattern) {
  for (const char* text :
       {"causal", "dense", "window(7, 3)", "dilated(5)", "causal | dilated(3)", "random(9, 1, 7)",
        "sinks(3) | window(20)", "per_head(causal, ~dense)", "blocks(10)"}) {
    const Shape shape{2, 2, 70, 150};
    const Pattern pattern = parse(text);
    const AllowedPairs allowed(pattern, shape);
    for (const TileShape tile :
         {TileShape{16, 16}, {32, 32}, {64, 64}, {64, 128}, {8, 24}, {16, 100}}) {
      const Plan made = plan(pattern, shape);
      const PlanView view = made.state().view(tile, false);
      for (int64_t row = 0; row < 2 * 2 * shape.q_len; ++row) {
        const int64_t head = row / shape.q_len, query = row % shape.q_len;
        std::vector<uint64_t> bits(size_t(ceil_div(shape.k_len, int64_t{64})), ~uint64_t{0});
        cpu::draw_row(view, head, query, shape.k_len, bits.data());
        int64_t count = 0;
        for (int64_t key = 0; key < int64_t(bits.size()) * 64; ++key) {
          const bool want = key < shape.k_len && allowed(head / 2, head % 2, query, key);
          ASSERT_EQ(get_bit(bits.data(), key), want)
              << text << ", tiles " << to_string(tile) << ", " << row << ", " << key;
          count += want ? 1 : 0;
        }
        EXPECT_EQ(cpu::count_bits(bits.data(), shape.k_len), count);
      }
    }
  }
}

TEST(RowBits, OfAllEndAtTheLastEntry) {
  for (const int64_t entries : {0, 1, 63, 64, 65, 130}) {
    std::vector<uint64_t> bits(size_t(ceil_div(entries, int64_t{64})));
    cpu::draw_all(entries, bits.data());
    int64_t next = 0;
    cpu::for_each_bit(bits.data(), entries, [&](int64_t entry) { EXPECT_EQ(entry, next++); });
    EXPECT_EQ(next, entries);
  }
}

}  // namespace
}  // namespace keyhole::test
