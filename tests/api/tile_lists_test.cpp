// tests/api/tile_lists_test.cpp
// Tile lists of a caller in host memory, through the public functions: against the definition, a
// tile that is named twice, and what is refused.
#include <gtest/gtest.h>

#include "judge/judge.h"
#include "keyhole/attention.h"
#include "keyhole/error.h"
#include "runtime/dispatch.h"
#include "runtime/registry.h"
#include "support/message_of.h"
#include "support/scale.h"
#include "support/tile_list_problem.h"

namespace keyhole::test {
namespace {

struct Results {
  std::vector<float> out, lse, dq, dk, dv;
};

struct Call {
  TileListCase c;
  TensorView q, k, v, dout;
  AttentionOptions options;

  Call(const TileListCase& of, const TileListProblem& p)
      : c(of),
        q(p.q.data(), DType::f32, {c.batch, c.heads, c.q_len, c.head_dim}),
        k(p.k.data(), DType::f32, {c.batch, c.kv_heads, c.k_len, c.head_dim}),
        v(p.v.data(), DType::f32, {c.batch, c.kv_heads, c.k_len, c.head_dim}),
        dout(p.dout.data(), DType::f32, {c.batch, c.heads, c.q_len, c.head_dim}) {
    options.softcap = c.softcap;
  }
  Results run(const Lists& lists) const {
    const auto rows = size_t(c.batch * c.heads * c.q_len), cols = size_t(c.head_dim);
    Results r{std::vector<float>(rows * cols),
              std::vector<float>(rows),
              std::vector<float>(rows * cols),
              {},
              {}};
    r.dk.resize(size_t(k.num_elements()));
    r.dv.resize(size_t(v.num_elements()));
    const judge::CallTensors t = tensors(r);
    attention_forward(q, k, v, lists, t.out, t.lse, options);
    attention_backward(dout, q, k, v, t.out, t.lse, lists, {t.dq, t.dk, t.dv, {}}, options);
    return r;
  }
  judge::CallTensors tensors(const Results& r) const {
    judge::CallTensors t{.q = q, .k = k, .v = v, .dout = dout, .out = q, .dq = q, .dk = k, .dv = v};
    t.lse = TensorView(r.lse.data(), DType::f32, {c.batch, c.heads, c.q_len});
    const auto put = [](TensorView& view, const std::vector<float>& numbers) {
      view.data = const_cast<float*>(numbers.data());
    };
    put(t.out, r.out), put(t.dq, r.dq), put(t.dk, r.dk), put(t.dv, r.dv);
    return t;
  }
};

const KernelEntry& kernel_for(Operation operation, const TileListCase& c) {
  return choose(kernel_table(), request_for({}, operation, DType::f32, c.head_dim, c.head_dim));
}

TEST(TileLists, AgreeWithThePatternThatSaysTheSame) {
  uint64_t seed = 1;
  Sample sample(/*least_percent=*/33);
  for (const TileListCase& c : tile_list_cases()) {
    SCOPED_TRACE(to_string(c));
    const uint64_t data = seed++;
    if (!sample.takes_next()) continue;
    const TileListProblem p(c, data);
    const Call call(c, p);
    const Results got = call.run(p.view());
    const judge::Answer answer{call.tensors(got), p.pattern(), call.options, /*offset=*/0};
    const auto queries = judge::rows_to_check(c.q_len, /*all_up_to=*/c.q_len, 0, 0);
    EXPECT_EQ(judge_forward(kernel_for(Operation::forward, c), answer, queries).complaint, "");
    EXPECT_EQ(judge_backward(kernel_for(Operation::backward, c), answer, queries).complaint, "");
    if (HasFailure()) return;
  }
}

// Its pairs have twice the weight: as if the keys stood there twice.
TEST(TileLists, ATileThatIsNamedTwiceCountsTwice) {
  const TileListCase c{.heads = 1, .kv_heads = 1, .q_len = 64, .k_len = 128, .capacity = 3};
  const TileListProblem p(c, 5);
  const Call call(c, p);
  TileListView twice;
  const int32_t named[] = {1, 0, 1};
  twice.tile = c.tile;
  twice.tiles = IndexView(named, {1, 1, 1, 3});
  const Results got = call.run(twice);
  std::vector<int32_t> keys;
  for (int32_t list = 0; list < 64; ++list) {
    for (int32_t i = 0; i < 192; ++i) keys.push_back(i < 128 ? i : i - 64);
  }
  const Results want = call.run(IndexView(keys.data(), {1, 1, 64, 192}));
  for (const auto& [a, b] : {std::pair{&got.out, &want.out},
                             {&got.lse, &want.lse},
                             {&got.dq, &want.dq},
                             {&got.dk, &want.dk},
                             {&got.dv, &want.dv}}) {
    ASSERT_EQ(a->size(), b->size());
    for (size_t i = 0; i < a->size(); ++i) ASSERT_NEAR((*a)[i], (*b)[i], 1e-4) << i;
  }
}

TEST(TileLists, WhatDoesNotFitIsRefused) {
  const TileListCase c{.has_counts = true, .has_bitmaps = true};
  const TileListProblem p(c, 7);
  const Call call(c, p);
  const auto error_of = [&](auto spoil) {
    TileListView lists = p.view();
    spoil(lists);
    return message_of([&] { call.run(lists); });
  };
  int32_t bad[4 * 4] = {};
  bad[1] = 6;
  EXPECT_EQ(error_of([&](TileListView& lists) {
              lists.tiles = IndexView(bad, {1, 1, 4, 4});
              lists.counts = {};
            }),
            "attention: tiles[0, 0, 0, 1] is 6; accepted are 0 to 5, and -1 for none");
  bad[1] = 3;
  EXPECT_EQ(error_of([&](TileListView& lists) {
              lists.counts = {};
              for (int32_t& tile : bad) tile = 0;
              bad[5] = 3;
              lists.tiles = lists.bitmap_of = IndexView(bad, {1, 1, 4, 4});
            }),
            "attention: bitmap_of[0, 0, 1, 1] is 3; accepted are 0 to 2, and -1 for none");
  EXPECT_EQ(
      error_of([](TileListView& lists) { lists.tile = {0, 64}; }),
      "attention: the lists are of tiles of 0x64; accepted are 1x1 to 1024x1024, such as 64x64 "
      "or 128x128");
  EXPECT_EQ(error_of([](TileListView& lists) { lists.tile = {100, 64}; }),
            "attention: tiles are int32 [1, 1, 4, 4]; q has 200 queries, 100 of them to a tile: "
            "expected 2 lists");
  EXPECT_EQ(error_of([](TileListView& lists) { lists.tiles.shape[1] = 3; }),
            "attention: tiles are int32 [1, 3, 4, 4]; their heads must be those of k, 1, those of "
            "q, 2, or 1");
  EXPECT_EQ(
      error_of([](TileListView& lists) { lists.counts.shape[2] = 3; }),
      "attention: counts are int32 [1, 1, 3, 1]; tiles are int32 [1, 1, 4, 4]: expected [1, 1, "
      "4, 1]");
  EXPECT_EQ(
      error_of([](TileListView& lists) { lists.bitmaps = nullptr; }),
      "attention: the lists have 3 bitmaps at address 0; pass their number and where they are, "
      "or 0 for none");
  EXPECT_EQ(
      error_of([](TileListView& lists) { lists.tiles.device = {Device::Kind::cuda, 0}; }),
      "attention: q is in host memory but tiles are on GPU 0; all tensors of a call must be in "
      "one place");
  // A tile that no kernel's tile divides.
  TileListView odd;
  const int32_t zero[10] = {};
  odd.tile = {20, 64};
  odd.tiles = IndexView(zero, {1, 1, 10, 1});
  const std::string text = message_of([&] { call.run(odd); });
  EXPECT_NE(
      text.find("\n  cpu: follows tiles of 64x64, 32x32, 16x16; the lists are of tiles of 20x64"),
      std::string::npos)
      << text;
}

TEST(TileLists, ACallWithoutRowsOrKeysIsEmpty) {
  for (const TileListCase& c : {TileListCase{.q_len = 0}, TileListCase{.k_len = 0}}) {
    const TileListProblem p(c, 3);
    const Call call(c, p);
    const Results got = call.run(p.view());
    for (const float x : got.out) EXPECT_EQ(x, 0);
    for (const float x : got.lse) EXPECT_EQ(x, -INFINITY);
    for (const float x : got.dk) EXPECT_EQ(x, 0);
  }
}

}  // namespace
}  // namespace keyhole::test
