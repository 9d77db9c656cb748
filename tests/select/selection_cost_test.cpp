// tests/select/selection_cost_test.cpp
// explain_selection against numbers worked out by hand, laws that hold for all sizes, keys counted
// pair by pair, and refusals.
#include "keyhole/selection_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "plan/plan_state.h"
#include "select/visible_keys.h"
#include "support/message_of.h"

namespace keyhole::test {
namespace {

constexpr int64_t kLong = 131072;

// 32 query heads, 8 kv heads of 128.
SelectionCall grouped(int64_t length) {
  return {.q_len = length, .k_len = length, .k = 2048, .q_heads = 32, .kv_heads = 8};
}
// DeepSeek's: 128 heads of 128 + 64, a latent vector of 512.
SelectionCall latent(int64_t length) {
  return {.q_len = length, .k_len = length, .k = 2048, .q_heads = 128, .latent_dim = 512};
}
SelectionCall light(SelectionCall call) {
  call.index_heads = 16, call.index_dim = 64;
  return call;
}
SelectionCall without_indexer(SelectionCall call) {
  call.index_heads = 0;
  return call;
}
SelectionCall with_queries(SelectionCall call, int64_t q_len) {
  call.q_len = q_len;
  return call;
}

struct Row {
  const char* name;
  SelectionCall call;
  double indexer_flops, indexer_seconds;
  double chosen_flops, gathered_bytes, chosen_seconds;
  double dense_flops, dense_seconds;
};

// Causal text of 131,072 tokens has 8.590e9 pairs; 2,048 keys of each query are 266.34e6 of them,
// since the first 2,048 queries have fewer.
//   grouped: 4 * 128 FLOP a pair and query head; a chosen key is 512 bytes for each kv head
//   latent: 2 * 1088 FLOP a chosen pair and head, 2 * 320 a dense one; a chosen key is 1152 bytes
//   indexer of 64 x 128: 16,384 FLOP a pair
const Row kRows[] = {
    {"grouped", grouped(kLong), 140.74e12, 0.09383, 4.364e12, 1.0909e12, 0.12987, 140.74e12,
     0.17815},
    {"grouped, light indexer", light(grouped(kLong)), 17.592e12, 0.011728, 4.364e12, 1.0909e12,
     0.12987, 140.74e12, 0.17815},
    {"latent", latent(kLong), 140.74e12, 0.09383, 74.18e12, 306.82e9, 0.09390, 703.69e12, 0.89075},
    {"latent, 4,096 queries: cached keys are expanded", with_queries(latent(kLong), 4096),
     8.6587e12, 5.7725e-3, 2.3365e12, 9.6637e9, 2.9576e-3, 47.551e12, 0.060192},
    {"latent, one query: keys stay in latent form", with_queries(latent(kLong), 1), 2.1475e9,
     3.9946e-6, 570.43e6, 2.3593e6, 0.72206e-6, 36.507e9, 46.211e-6},
    {"grouped, one query: memory is what takes time", with_queries(grouped(kLong), 1), 2.1475e9,
     3.9946e-6, 33.554e6, 8.3886e6, 1.9973e-6, 2.1475e9, 127.83e-6},
};

TEST(SelectionCost, IsWhatWasWorkedOutByHand) {
  const auto near = [](double got, double want) { return std::abs(got - want) <= 2e-4 * want; };
  for (const Row& row : kRows) {
    const SelectionReport report = explain_selection(row.call);
    EXPECT_PRED2(near, report.indexer.flops, row.indexer_flops) << row.name;
    EXPECT_PRED2(near, report.indexer.seconds, row.indexer_seconds) << row.name;
    EXPECT_PRED2(near, report.chosen.flops, row.chosen_flops) << row.name;
    EXPECT_PRED2(near, report.chosen.gathered_bytes, row.gathered_bytes) << row.name;
    EXPECT_PRED2(near, report.chosen.seconds, row.chosen_seconds) << row.name;
    EXPECT_PRED2(near, report.dense.flops, row.dense_flops) << row.name;
    EXPECT_PRED2(near, report.dense.seconds, row.dense_seconds) << row.name;
    EXPECT_DOUBLE_EQ(report.speedup,
                     report.dense.seconds / (report.indexer.seconds + report.chosen.seconds))
        << row.name;
  }
}

// 1088 * (2048 L - 2048 * 2047 / 2) = 320 * L (L + 1) / 2, and with the indexer 320 less 64 at
// 790 / 1500.
TEST(SelectionCost, LatentHeadsPayFrom13Thousand) {
  EXPECT_NEAR(double(explain_selection(without_indexer(latent(8192))).wins_from.value()), 12813, 1);
  EXPECT_NEAR(double(explain_selection(latent(8192)).wins_from.value()), 14464, 1);
}

TEST(SelectionCost, SaysWhatWouldHelp) {
  const SelectionReport report = explain_selection(grouped(kLong));
  EXPECT_LT(report.speedup, 1);
  ASSERT_EQ(report.changes.size(), 3u);
  EXPECT_EQ(report.changes[0].what, "an indexer of 16 heads of 64 in e4m3");
  EXPECT_DOUBLE_EQ(report.changes[0].speedup, explain_selection(light(grouped(kLong))).speedup);
  EXPECT_EQ(report.changes[1].what, "lists shared by 4 layers");
  EXPECT_EQ(report.changes[2].what, "8 query heads per kv head instead of 4");
  const std::string text = report.text();
  EXPECT_NE(text.find("dense attention is faster here, 178.2 ms against 223.7 ms"),
            std::string::npos)
      << text;
  // One kv head and no indexer: nothing is left to change.
  SelectionCall least = without_indexer(grouped(kLong));
  least.kv_heads = 1;
  EXPECT_TRUE(explain_selection(least).changes.empty());
}

TEST(SelectionCost, NeverPaysWhereTheIndexerCostsMoreThanDenseAttention) {
  SelectionCall call = grouped(kLong);
  call.q_heads = call.kv_heads = 8;
  const SelectionReport report = explain_selection(call);
  EXPECT_FALSE(report.wins_from);
  EXPECT_NE(report.text().find("pays      at no length\n"), std::string::npos) << report.text();
}

TEST(SelectionCost, TheLengthFromWhichItPaysIsExact) {
  for (SelectionCall call :
       {grouped(4096), light(grouped(4096)), latent(4096), without_indexer(latent(4096)),
        with_queries(latent(kLong), 64), with_queries(grouped(kLong), 1)}) {
    const int64_t length = explain_selection(call).wins_from.value();
    const bool grows = call.q_len == call.k_len;
    for (const int64_t at : {length - 1, length}) {
      call.k_len = at;
      if (grows) call.q_len = at;
      EXPECT_EQ(explain_selection(call).speedup > 1, at == length) << at;
    }
  }
}

TEST(SelectionCost, MoreWorkNeverTakesLess) {
  const auto seconds = [](const SelectionCall& call) {
    return explain_selection(call).choosing_seconds;
  };
  for (const SelectionCall& base :
       {grouped(3000), latent(3000), light(grouped(9000)), with_queries(latent(9000), 7),
        with_queries(grouped(5000), 1)}) {
    SelectionCall call = base;
    call.k = base.k + 100;
    EXPECT_GT(seconds(call), seconds(base)) << "k";
    EXPECT_GE(explain_selection(call).wins_from, explain_selection(base).wins_from) << "k";
    call = base, call.index_heads *= 2;
    EXPECT_GE(seconds(call), seconds(base)) << "index_heads";  // equal where memory takes longest
    call = base, call.index_dtype = DType::bf16;
    EXPECT_GT(seconds(call), seconds(base)) << "index_dtype";
    call = base, call.shared_by = 2;
    EXPECT_LT(seconds(call), seconds(base)) << "shared_by";
    call = base, call.batch = 3;
    EXPECT_NEAR(seconds(call), 3 * seconds(base), 1e-12) << "batch";
    EXPECT_NEAR(explain_selection(call).speedup, explain_selection(base).speedup, 1e-12) << "batch";
    EXPECT_EQ(explain_selection(call).visible_pairs, 3 * explain_selection(base).visible_pairs);

    const GpuRates twice{
        .flops_16bit = 1580e12, .flops_8bit = 3000e12, .memory = 8.4e12, .gathered = 16.8e12};
    const SelectionReport fast = explain_selection(base, twice);
    EXPECT_NEAR(fast.choosing_seconds, seconds(base) / 2, 1e-12) << "rates";
    EXPECT_EQ(fast.wins_from, explain_selection(base).wins_from) << "rates";
  }
}

// ---- which keys are counted ----

KeyCounts counted_pair_by_pair(const Pattern& pattern, const Shape& shape, int64_t k) {
  KeyCounts counts;
  for (int64_t head = 0; head < shape.batch * shape.heads; ++head) {
    const HeadPattern seen = pattern.for_head(shape, head / shape.heads, head % shape.heads);
    for (int64_t q = 0; q < shape.q_len; ++q) {
      int64_t keys = 0;
      for (int64_t key = 0; key < shape.k_len; ++key) keys += seen.allows(q, key);
      counts.visible += keys;
      counts.chosen += std::min(keys, k);
    }
  }
  return counts;
}

TEST(VisibleKeys, AreThoseOfThePattern) {
  const Pattern patterns[] = {causal(),
                              causal() & window(70, 0),
                              causal() & dilated(3),
                              exponential(),
                              causal() & (window(20, 0) | random(16, 2, 1)),
                              documents({100, 57, 143}),
                              per_head({causal(), causal() & window(5, 0)})};
  for (const Pattern& pattern : patterns) {
    const int64_t heads = pattern.depends_on_heads(300, 300) ? 2 : 1;
    const Shape shape{.heads = heads, .q_len = 300, .k_len = 300};
    for (const SplitPolicy policy : {SplitPolicy::by_cost, SplitPolicy::mixed}) {
      const KeyCounts got = keys_of(make_plan(pattern, shape, policy), 37);
      const KeyCounts want = counted_pair_by_pair(pattern, shape, 37);
      EXPECT_EQ(got.visible, want.visible) << pattern;
      EXPECT_EQ(got.chosen, want.chosen) << pattern;
    }
  }
}

TEST(VisibleKeys, OfCausalTextNeedNoPlan) {
  for (const int64_t q_len : {0, 1, 5, 64, 70}) {
    for (const int64_t k_len : {0, 1, 6, 64, 69, 100}) {
      for (const int64_t k : {1, 7, 64, 1000}) {
        const Shape shape{.q_len = q_len, .k_len = k_len};
        const KeyCounts got = causal_keys(q_len, k_len, k);
        const KeyCounts want = counted_pair_by_pair(causal(), shape, k);
        EXPECT_EQ(got.visible, want.visible) << q_len << " x " << k_len;
        EXPECT_EQ(got.chosen, want.chosen) << q_len << " x " << k_len << ", k " << k;
      }
    }
  }
}

TEST(SelectionCost, FollowsThePlanOfVisibleKeys) {
  SelectionCall call = grouped(600);
  call.k = 50;
  const SelectionReport none = explain_selection(call);
  call.visible = plan(causal(), 600, 600);
  EXPECT_EQ(explain_selection(call).text(), none.text());

  call.visible = plan(causal() & window(99, 0), 600, 600);
  const SelectionReport near = explain_selection(call);
  EXPECT_EQ(near.visible_pairs, 600 * 100 - 99 * 100 / 2);
  EXPECT_EQ(near.chosen_pairs, 600 * 50 - 49 * 50 / 2);
  EXPECT_FALSE(near.is_causal);
  EXPECT_NE(near.text().find("pays      where a query sees about "), std::string::npos);

  // A list for each kv head: as many pairs for the attention, eight times as many lists.
  call.groups = 8;
  EXPECT_EQ(explain_selection(call).chosen_pairs, 8 * near.chosen_pairs);
  EXPECT_EQ(explain_selection(call).chosen.flops, near.chosen.flops);
  call.visible =
      plan(causal() & window(99, 0), Shape{.batch = 1, .heads = 8, .q_len = 600, .k_len = 600});
  EXPECT_EQ(explain_selection(call).chosen_pairs, 8 * near.chosen_pairs);
}

TEST(SelectionCost, OfNothingIsNothing) {
  for (const int64_t q_len : {0, 5}) {
    SelectionCall call = grouped(0);
    call.q_len = q_len;
    const SelectionReport report = explain_selection(call);
    EXPECT_EQ(report.speedup, 0);
    EXPECT_NE(report.text().find("nothing to compute"), std::string::npos);
    EXPECT_NE(report.json().find("\"wins_from\": null"), std::string::npos);
  }
}

// ---- what is refused ----

TEST(SelectionCost, RefusesInWords) {
  const auto says = [](auto change) {
    SelectionCall call = grouped(600);
    change(call);
    return message_of([&] { explain_selection(call); });
  };
  EXPECT_EQ(says([](SelectionCall& c) { c.k = 0; }),
            "explain_selection: k, the keys to choose per query, is 0; accepted are 1 to "
            "2147483647");
  EXPECT_EQ(says([](SelectionCall& c) { c.q_len = int64_t{1} << 31; }),
            "explain_selection: q_len is 2147483648; accepted are 0 to 2147483647");
  EXPECT_EQ(says([](SelectionCall& c) { c.index_heads = -1; }),
            "explain_selection: index_heads is -1; accepted are 0 to 65536");
  EXPECT_EQ(says([](SelectionCall& c) { c.q_heads = 12; }),
            "explain_selection: q_heads is 12 and kv_heads 8; the first must be a multiple of the "
            "second");
  EXPECT_EQ(says([](SelectionCall& c) { c.latent_dim = 512; }),
            "explain_selection: kv_heads is 8 and latent_dim 512; latent heads share one key, so "
            "pass kv_heads 1, or latent_dim 0 for grouped heads");
  EXPECT_EQ(
      says([](SelectionCall& c) { c.groups = 3; }),
      "explain_selection: groups is 3 and kv_heads 8; groups must divide the kv heads evenly: "
      "1 for one list per query, 8 for one per kv head");
  EXPECT_EQ(says([](SelectionCall& c) { c.groups = 4, c.index_heads = 6; }),
            "explain_selection: index_heads is 6 and groups 4; the index heads must be a multiple "
            "of the groups");
  EXPECT_EQ(says([](SelectionCall& c) { c.dtype = DType::f32; }),
            "explain_selection: attention in f32; accepted are bf16 and f16, for which rates of a "
            "GPU are stated");
  EXPECT_EQ(says([](SelectionCall& c) { c.index_dtype = DType::f64; }),
            "explain_selection: an indexer in f64; accepted are e4m3, bf16 and f16, for which "
            "rates of a GPU are stated");
  EXPECT_EQ(says([](SelectionCall& c) { c.visible = plan(causal(), 600, 601); }),
            "explain_selection: the plan of the visible keys is for 600 queries and 601 keys, the "
            "call has 600 and 600; make a plan for these lengths");
  EXPECT_EQ(says([](SelectionCall& c) {
              c.visible = plan(causal(), Shape{.batch = 1, .heads = 3, .q_len = 600, .k_len = 600});
            }),
            "explain_selection: the plan of the visible keys is for 1 batch entries and 3 heads, "
            "the call has 1 batch entries and 1 groups; make a plan for one head of one batch "
            "entry, or for each of the groups");
  EXPECT_EQ(says([](SelectionCall& c) {
              c.q_len = c.k_len = std::numeric_limits<int32_t>::max();
              c.batch = 65536;
            }),
            "explain_selection: pairs: 4611686014132420609 x 65536 does not fit 64 bits");
  for (const double rate : {0.0, -1.0, std::numeric_limits<double>::infinity(),
                            std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_NE(message_of([&] {
                explain_selection(grouped(600), {.memory = rate});
              }).find("explain_selection: the rate memory is "),
              std::string::npos);
  }
}

}  // namespace
}  // namespace keyhole::test
