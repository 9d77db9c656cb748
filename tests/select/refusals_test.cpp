// tests/select/refusals_test.cpp
// Every argument of a selection that is refused: the text says what was passed, what is accepted
// and the way out, and nothing is written.
#include <gtest/gtest.h>

#include <limits>

#include "support/message_of.h"
#include "support/select_checks.h"

namespace keyhole::test {
namespace {

// Calls with one thing changed.
struct Call {
  SelectCase c{.batch = 2, .groups = 2, .heads = 3, .has_scale = true};
  SelectProblem p{c};
  IndexerView indexer = p.indexer();
  Selection selection = p.selection();
  SelectOptions options = p.options();
  TensorView scores = p.scores.view(), given = p.given_scores.view();

  std::string select_keys_says() const {
    return message_of([&] { select_keys(indexer, selection, options); });
  }
  std::string index_scores_says() const {
    return message_of([&] { index_scores(indexer, scores, options); });
  }
  std::string top_k_says() const {
    return message_of([&] { top_k(given, selection, options); });
  }
};

TEST(SelectRefusals, NothingIsRefusedOfAGoodCall) {
  EXPECT_EQ(Call().select_keys_says(), "no error");
  EXPECT_EQ(Call().index_scores_says(), "no error");
  EXPECT_EQ(Call().top_k_says(), "no error");
}

TEST(SelectRefusals, K) {
  for (const int64_t k : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
    Call call;
    call.options.k = k;
    const std::string text = "k is " + std::to_string(k) +
                             "; at least 1 entry must be chosen. It may exceed the number of "
                             "entries";
    EXPECT_EQ(call.select_keys_says(), "select_keys: " + text);
    EXPECT_EQ(call.top_k_says(), "top_k: " + text);
    EXPECT_EQ(call.index_scores_says(), "no error") << "k is not for index_scores";
  }
  Call call;
  call.options.k = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(call.top_k_says(),
            "top_k: indices are int32 [2, 2, 5, 4]; expected int32 [2, 2, 5, 9223372036854775807 "
            "or more]");
}

TEST(SelectRefusals, HeadsAndGroups) {
  Call call;
  call.indexer.q.shape[1] = 5;
  EXPECT_EQ(call.select_keys_says(),
            "select_keys: q has 5 index heads and k has 2 groups; the index heads must be a "
            "multiple of the groups. Repeat or drop heads, or pass k with one group, which serves "
            "all index heads");
  Call none;
  none.indexer.q.shape[1] = 0;
  EXPECT_NE(none.select_keys_says(), "no error");
}

TEST(SelectRefusals, Weights) {
  Call call;
  call.indexer.w.shape[2] = 4;
  EXPECT_EQ(call.index_scores_says(),
            "index_scores: w has shape [2, 6, 4]; expected [2, 6, 5], batch, index heads and "
            "length of q");
  Call rank;
  rank.indexer.w = TensorView(rank.indexer.w.data, DType::f32, {2, 6, 5, 1});
  EXPECT_EQ(rank.index_scores_says(),
            "index_scores: w has 4 dimensions; expected 3: [batch, index_heads, q_len]");
  Call dtype;
  dtype.indexer.w.dtype = DType::bf16;
  EXPECT_EQ(dtype.index_scores_says(), "index_scores: w is bf16; it must be f32 where q is f32");
  Call scale;
  scale.indexer.k_scale.shape[1] = 1;
  EXPECT_EQ(scale.index_scores_says(),
            "index_scores: k_scale has shape [2, 1, 40]; expected [2, 2, 40], batch, groups and "
            "entries of k");
}

TEST(SelectRefusals, ShapesAndDTypesOfTheIndexer) {
  Call dim;
  dim.indexer.k.shape[3] = 7;
  EXPECT_EQ(dim.select_keys_says(),
            "select_keys: q has head_dim 8 but k has 7; they must be equal");
  Call batch;
  batch.indexer.k.shape[0] = 1;
  EXPECT_EQ(batch.select_keys_says(), "select_keys: q has batch 2 and k has 1; they must be equal");
  Call dtype;
  dtype.indexer.k.dtype = DType::f64;
  EXPECT_EQ(dtype.select_keys_says(), "select_keys: q is f32 but k is f64; they must be equal");
  Call wide;
  wide.indexer.q.shape[3] = wide.indexer.k.shape[3] = 577;
  EXPECT_EQ(wide.select_keys_says(), "select_keys: q has head_dim 577; accepted are 1 to 576");
  Call rank;
  rank.indexer.q.rank = 3;
  EXPECT_NE(rank.select_keys_says().find("q has 3 and k 4 dimensions; expected 4"),
            std::string::npos);
  Call stride;
  stride.indexer.k.strides[3] = 2;
  EXPECT_NE(stride.select_keys_says().find("stride 2 in its last dimension"), std::string::npos);
  Call null;
  null.indexer.k.data = nullptr;
  EXPECT_NE(null.select_keys_says().find("its data pointer is null"), std::string::npos);
  Call many;
  many.indexer.k.shape[2] = int64_t{1} << 31;
  many.indexer.k.strides[2] = 0;
  many.indexer.k_scale = {};
  EXPECT_EQ(many.select_keys_says(),
            "select_keys: there are 2147483648 entries; lists of int32 take up to 2147483647");
}

TEST(SelectRefusals, Scores) {
  Call shape;
  shape.scores.shape[3] = 39;
  EXPECT_EQ(shape.index_scores_says(),
            "index_scores: scores has shape [2, 2, 5, 39]; expected [2, 2, 5, 40], batch, groups, "
            "length of q and entries of k");
  Call dtype;
  dtype.scores.dtype = DType::f16;
  EXPECT_EQ(dtype.index_scores_says(),
            "index_scores: scores is f16; it must be f32 where q is f32");
  Call e4m3;
  e4m3.given.dtype = DType::e4m3;
  EXPECT_EQ(e4m3.top_k_says(),
            "top_k: scores are e4m3; accepted are f32, f16, bf16 and f64, convert them first");
}

TEST(SelectRefusals, Lists) {
  Call columns;
  columns.options.k = 5;
  EXPECT_EQ(columns.top_k_says(),
            "top_k: indices are int32 [2, 2, 5, 4]; expected int32 [2, 2, 5, 5 or more]");
  Call wide;
  wide.selection.indices.is_wide = true;
  EXPECT_EQ(wide.select_keys_says(), "select_keys: indices are int64; they must be int32");
  Call none;
  none.selection.indices = {};
  EXPECT_EQ(none.select_keys_says(), "select_keys: indices are not given; pass int32 [2, 2, 5, 4]");
  Call counts;
  counts.selection.counts.shape[3] = 2;
  EXPECT_EQ(counts.select_keys_says(),
            "select_keys: counts are int32 [2, 2, 5, 2]; expected int32 [2, 2, 5, 1]");
  Call shared;
  shared.selection.indices.rows_per_list = 2;
  EXPECT_NE(shared.select_keys_says().find("rows_per_list 2"), std::string::npos);
  Call written_twice;
  written_twice.selection.indices.strides[2] = 0;
  EXPECT_NE(written_twice.select_keys_says().find("its elements overlap"), std::string::npos);
}

TEST(SelectRefusals, Overlaps) {
  Call call;
  call.selection.counts.data = call.selection.indices.data;
  EXPECT_EQ(call.select_keys_says(),
            "select_keys: counts overlaps indices in memory; outputs need memory of their own");
  Call input;
  input.scores.data = input.indexer.k.data;
  EXPECT_EQ(input.index_scores_says(),
            "index_scores: scores overlaps k in memory; outputs need memory of their own");
  Call of_scores;
  of_scores.selection.indices.data = of_scores.given.data;
  EXPECT_NE(of_scores.top_k_says().find("indices overlaps scores"), std::string::npos);
}

TEST(SelectRefusals, Plans) {
  Call length;
  length.options.visible = plan(causal(), 5, 41);
  EXPECT_EQ(length.select_keys_says(),
            "select_keys: the plan of `visible` was made for 5 queries and 41 entries but got 5 "
            "and 40; make it again for these: plan(pattern, 5, 40)");
  Call heads;
  heads.options.always = plan(causal(), Shape{2, 6, 5, 40});
  EXPECT_EQ(heads.top_k_says(),
            "top_k: the plan of `always` was made for batch 2 and 6 heads but there are batch 2 "
            "and 2 groups; make it again for these, or for batch 1 and one head, which serves all");
}

TEST(SelectRefusals, PlacesAndOptions) {
  Call mixed;
  mixed.indexer.k.device = {Device::Kind::cuda, 1};
  EXPECT_EQ(mixed.select_keys_says(),
            "select_keys: q is in host memory but k is on GPU 1; all tensors of a call must be in "
            "one place");
  Call lists;
  lists.selection.indices.device = {Device::Kind::cuda, 0};
  EXPECT_NE(lists.select_keys_says().find("indices is on GPU 0"), std::string::npos);
  Call threads;
  threads.options.threads = -1;
  EXPECT_EQ(threads.select_keys_says(),
            "select_keys: threads is -1; it must be positive, or 0 for all the machine has");
  Call backend;
  backend.options.backend = "tpu";
  EXPECT_NE(backend.select_keys_says().find("backend is \"tpu\"; accepted are auto"),
            std::string::npos);
}

struct LossCall {
  LossCase c{.groups = 2, .target_heads = 4, .kv_heads = 2};
  LossProblem p{c};
  IndexerView indexer = p.indexer();
  AttentionTarget target = p.target();
  Lists lists = p.lists();
  TensorView loss = p.loss.view(), stats = p.stats.view(), dloss = p.dloss.view();
  IndexGradients gradients{p.dq.view(), p.dk.view(), p.dw.view()};
  IndexLossOptions options = p.options();

  std::string forward_says() const {
    return message_of([&] { index_loss_forward(indexer, target, lists, loss, stats, options); });
  }
  std::string backward_says() const {
    return message_of(
        [&] { index_loss_backward(dloss, indexer, target, lists, stats, gradients, options); });
  }
};

TEST(SelectRefusals, OfTheIndexLoss) {
  LossCall good;
  EXPECT_EQ(good.forward_says(), "no error");
  EXPECT_EQ(good.backward_says(), "no error");
  LossCall keys;
  keys.target.k.shape[2] = 8;
  EXPECT_NE(keys.forward_says().find("k must have one entry for each key, or pass keys_per_entry"),
            std::string::npos);
  keys.target.keys_per_entry = 3;
  EXPECT_NE(keys.forward_says().find("k must have one entry for 3 keys: 3"), std::string::npos);
  keys.target.keys_per_entry = 0;
  EXPECT_EQ(keys.forward_says(),
            "index_loss_forward: keys_per_entry is 0; accepted are 1 and more");
  LossCall heads;
  heads.target.q.shape[1] = heads.target.lse.shape[1] = 3;
  heads.target.k.shape[1] = 1;
  EXPECT_NE(heads.forward_says().find("target.q has 3 heads and k has 2 groups"),
            std::string::npos);
  LossCall lse;
  lse.target.lse.dtype = DType::bf16;
  EXPECT_EQ(lse.forward_says(),
            "index_loss_forward: target.lse is bf16; it must be f32 where target.q is f32");
  LossCall tiles;
  tiles.lists = TileListView{};
  EXPECT_NE(tiles.forward_says().find("accepted are a plan"), std::string::npos);
  LossCall plan_heads;
  plan_heads.lists = plan(causal(), Shape{1, 4, 9, 9});
  EXPECT_NE(plan_heads.forward_says().find("index_loss_forward: the plan of `lists` was made for"),
            std::string::npos);
  LossCall stats;
  stats.stats.shape[3] = 1;
  EXPECT_NE(stats.forward_says().find("stats has shape [1, 2, 9, 1]"), std::string::npos);
  LossCall scale;
  scale.target.scale = std::numeric_limits<double>::infinity();
  EXPECT_NE(scale.forward_says().find("target.scale is inf"), std::string::npos);
}

TEST(SelectRefusals, RowsOfTheIndexLoss) {
  const auto says = [](std::vector<int32_t> rows) {
    LossCall call;
    call.options.rows = IndexView(rows.data(), {1, 1, 1, int64_t(rows.size())});
    return call.forward_says();
  };
  EXPECT_EQ(says({0, 3, 8}), "no error");
  EXPECT_EQ(says({0, 3, 3}),
            "index_loss_forward: rows[2] is 3; rows ascend, each once, from 0 to 8");
  EXPECT_EQ(says({9}), "index_loss_forward: rows[0] is 9; rows ascend, each once, from 0 to 8");
  EXPECT_EQ(says({-1}), "index_loss_forward: rows[0] is -1; rows ascend, each once, from 0 to 8");
}

TEST(SelectRefusals, OfItsGradients) {
  LossCall dw;
  dw.gradients.dw = {};
  EXPECT_EQ(dw.backward_says(), "index_loss_backward: dw is not given but w is; pass both or none");
  LossCall shape;
  shape.gradients.dk.shape[2] = 8;
  EXPECT_EQ(
      shape.backward_says(),
      "index_loss_backward: dk has shape [1, 2, 8, 8]; expected [1, 2, 9, 8], the shape of k");
  LossCall dtype;
  dtype.gradients.dq.dtype = DType::f64;
  EXPECT_EQ(dtype.backward_says(),
            "index_loss_backward: q is f32 but dq is f64; they must be equal");
  LossCall overlap;
  overlap.gradients.dq.data = overlap.indexer.q.data;
  overlap.gradients.dq.strides[2] = 8;
  EXPECT_NE(overlap.backward_says().find("dq overlaps q in memory"), std::string::npos);
  const LossCase c{.dtype = DType::e4m3};
  LossProblem p(c);
  EXPECT_NE(message_of([&] { p.backward(); }).find("q is e4m3, which has no gradients"),
            std::string::npos);
}

// A list of the caller's with a key that does not exist.
TEST(SelectRefusals, EntriesOfLists) {
  LossCall call;
  std::vector<int32_t> listed(size_t(2 * 9 * 3), -1);
  listed[4] = 9;
  call.lists = IndexView(listed.data(), {1, 2, 9, 3});
  EXPECT_NE(call.forward_says().find("indices[0, 0, 1, 1] is 9"), std::string::npos);
}

TEST(SelectRefusals, AttentionDoesNotTakeE4m3) {
  const SelectCase c{.heads = 1, .q_len = 9, .entries = 9, .dtype = DType::e4m3};
  SelectProblem p(c);
  std::vector<uint8_t> out(size_t(9 * 8));
  EXPECT_EQ(message_of([&] {
              attention_forward(p.q.view(), p.k.view(), p.k.view(), plan(causal(), 9, 9),
                                TensorView(out.data(), DType::e4m3, {1, 1, 9, 8}));
            }),
            "attention: q is e4m3; accepted are f32, bf16, f16 and f64. e4m3 is for the indexer of "
            "select_keys; convert q, k and v first");
}

}  // namespace
}  // namespace keyhole::test
