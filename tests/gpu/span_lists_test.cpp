// tests/gpu/span_lists_test.cpp
// Deterministic passes over the key lists of plans: which go by spans of keys, and that these agree
// with the kernel of any GPU, which follows lists by key.
#include "kernels/device/span_lists.h"

#include <cmath>

#include "gpu/gpu_problem.h"
#include "plan/plan_state.h"
#include "support/per_head.h"

namespace keyhole::test {
namespace {

using GpuSpanLists = GpuTest;

Request deterministic(const KeyListSizes& sizes) {
  Request request;
  request.deterministic = true;
  request.key_lists = sizes;
  return request;
}

// Needs no GPU: what decides is sizes alone.
TEST(SpanLists, ServeListsThatFourRowsShareAndThatVisitEverySecondSpan) {
  const KeyListSizes usual{.rows = 16, .room = 2048, .keys = 2048, .k_len = 65536};
  const auto order = [](const KeyListSizes& sizes) {
    return device::key_lists_in_order(deterministic(sizes));
  };
  EXPECT_EQ(order(usual), KeyListOrder::by_span);
  EXPECT_EQ(order({}), KeyListOrder::by_key);
  const auto with = [&](auto change) {
    KeyListSizes sizes = usual;
    change(sizes);
    return order(sizes);
  };
  const int64_t spans = usual.k_len / device::kSpanKeys;
  EXPECT_EQ(with([](auto& s) { s.rows = 4; }), KeyListOrder::by_span);
  EXPECT_EQ(with([](auto& s) { s.rows = 3; }), KeyListOrder::by_key);
  EXPECT_EQ(with([](auto& s) { s.rows = int64_t{1} << 21; }), KeyListOrder::by_key);
  EXPECT_EQ(with([&](auto& s) { s.keys = s.room = spans / 2; }), KeyListOrder::by_span);
  EXPECT_EQ(with([&](auto& s) { s.keys = s.room = spans / 2 - 1; }), KeyListOrder::by_key);
  // A longest list beside short ones.
  EXPECT_EQ(with([](auto& s) { s.keys = s.room / 64; }), KeyListOrder::by_key);  // few pairs
  EXPECT_EQ(with([](auto& s) { s.room = 64 * s.keys; }), KeyListOrder::by_span);
  EXPECT_EQ(with([](auto& s) { s.room = 64 * s.keys + 1; }), KeyListOrder::by_key);
  EXPECT_EQ(with([](auto& s) { s.k_len = 786432; }), KeyListOrder::by_span);
  EXPECT_EQ(with([](auto& s) { s.k_len = 786433; }), KeyListOrder::by_key);
  Request capped = deterministic(usual);
  capped.has_softcap = true;
  EXPECT_EQ(device::key_lists_in_order(capped), KeyListOrder::by_key);
}

double relative_difference(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(double(got[i]) - double(want[i]), 2);
    size += std::pow(double(want[i]), 2);
  }
  return std::sqrt(difference / size);
}

struct SpanCase {
  std::string pattern;
  SplitPolicy policy;
  int64_t heads, kv_heads, q_len, k_len;
  int64_t head_dim = 64;
  DType dtype = DType::bf16;
};

void check(const SpanCase& c) {
  SCOPED_TRACE(c.pattern);
  const GpuProblem problem({.heads = c.heads,
                            .kv_heads = c.kv_heads,
                            .q_len = c.q_len,
                            .k_len = c.k_len,
                            .head_dim = c.head_dim,
                            .dtype = c.dtype});
  const Plan made = make_plan(parse(c.pattern), {1, c.heads, c.q_len, c.k_len}, c.policy);
  AttentionOptions options = by_backend("sm80");
  options.deterministic = true;
  const std::string kernel = kernel_for_backward(problem.q.view(), problem.v.view(), made, options);
  EXPECT_NE(kernel.find("key lists by span"), std::string::npos) << kernel;
  problem.forward(made);
  synchronize(kGpu);

  AttentionOptions simple = by_backend("simple");
  simple.deterministic = true;
  problem.spoil(Operation::backward);
  problem.backward(made, simple);
  const std::vector<float> dq = problem.dq.read(), dk = problem.dk.read(), dv = problem.dv.read();
  const std::vector<float> dsink = problem.dsink.read();
  std::vector<std::byte> first;
  for (int repeat = 0; repeat < 5; ++repeat) {
    problem.spoil(Operation::backward);
    problem.backward(made, options);
    const std::vector<std::byte> all = problem.results(Operation::backward);
    if (repeat == 0) first = all;
    EXPECT_TRUE(all == first) << "repeat " << repeat;
  }
  EXPECT_LT(relative_difference(problem.dq.read(), dq), 0.01);
  EXPECT_LT(relative_difference(problem.dk.read(), dk), 0.01);
  EXPECT_LT(relative_difference(problem.dv.read(), dv), 0.01);
  EXPECT_LT(relative_difference(problem.dsink.read(), dsink), 0.01);
}

TEST_F(GpuSpanLists, OfPlansAgreeWithListsByKey) {
  using enum SplitPolicy;
  for (const SpanCase& c : {
           SpanCase{"random(1, 700, 3)", gather, 16, 2, 300, 3000},
           {"random(1, 90, 3)", gather, 20, 1, 130, 1025, 128, DType::f16},
           {"causal & random(1, 900, 5)", gather, 16, 1, 800, 1800},  // lists of 0 to 900 keys
           {"causal", gather, 8, 2, 700, 700, 128},
           {"window(40) | random(1, 300, 5)", mixed, 16, 2, 500, 1300, 128},  // after tiles
           // Two and three lists for the heads of a kv head; heads without keys.
           {per_head_text({{4, "random(1, 500, 1)"}, {4, "random(1, 40, 2)"}}), gather, 8, 1, 200,
            900},
           {per_head_text({{4, "causal"}, {4, "~dense"}, {4, "causal"}}), gather, 12, 1, 300, 300},
           {"random(1, 600, 3)", gather, 4, 1, 100, 1300, 256},
       }) {
    check(c);
  }
}

// More lists than fit the workspace at a time.
TEST_F(GpuSpanLists, OfAPlanInSeveralChunks) {
  check({"random(1, 1500, 1)", SplitPolicy::gather, 16, 2, 2200, 3000});
  check({"causal & random(1, 2900, 1)", SplitPolicy::gather, 4, 1, 3000, 3000});
}

}  // namespace
}  // namespace keyhole::test
