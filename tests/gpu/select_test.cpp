// tests/gpu/select_test.cpp
// Selections on a GPU: lists exactly those of the definition, scores within rounding, the same
// every time, and in a CUDA graph that is replayed on other data.
#include <gtest/gtest.h>

#include "gpu/gpu_problem.h"
#include "gpu/graph.h"
#include "support/select_checks.h"

namespace keyhole::test {
namespace {

using GpuSelect = GpuTest;

TEST_F(GpuSelect, TopKOfEveryKindOfScores) {
  for (int kind = 0; kind < kNumScoreKinds; ++kind) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      for (const int64_t entries : {1, 63, 64, 500, 20003}) {
        for (const int64_t k : {1, 7, 100, 600}) {
          const SelectCase c{.groups = 2,
                             .q_len = 3,
                             .entries = entries,
                             .k = k,
                             .dtype = dtype,
                             .layout = entries == 500 ? Layout::padded : Layout::contiguous,
                             .kind = ScoreKind(kind),
                             .extra_columns = k == 7 ? 5 : 0,
                             .device = kGpu,
                             .seed = uint64_t(kind)};
          EXPECT_EQ(check_top_k(c), "") << to_text(c);
        }
      }
    }
  }
}

TEST_F(GpuSelect, TopKOfLongRows) {
  for (int kind = 0; kind < kNumScoreKinds; ++kind) {
    for (const int64_t k : {1, 300, 2048, 8191}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const SelectCase c{.q_len = 2,
                           .entries = 131072 + kind % 2,
                           .k = k,
                           .dtype = dtype,
                           .kind = ScoreKind(kind),
                           .device = kGpu,
                           .seed = uint64_t(kind)};
        EXPECT_EQ(check_top_k(c), "") << to_text(c);
      }
    }
  }
}

TEST_F(GpuSelect, TopKOfRowsAsLongAsK) {
  for (const int64_t k : {1, 63, 64, 65}) {
    for (const int64_t entries : {int64_t{0}, int64_t{1}, k - 1, k, k + 1}) {
      for (const ScoreKind kind : {ScoreKind::normal, ScoreKind::special, ScoreKind::equal}) {
        const SelectCase c{.entries = entries, .k = k, .kind = kind, .device = kGpu};
        EXPECT_EQ(check_top_k(c), "") << to_text(c);
      }
    }
  }
}

constexpr const char* kPatterns[] = {
    "causal",          "window(200, 100)", "dilated(7)",           "causal | dilated(5, 9)",
    "random(9, 1, 7)", "~dense",           "sinks(3) | window(9)", "global_at(17, 63, 64)",
    "blocks(48)",      "prefix(70)"};

TEST_F(GpuSelect, TopKOfWhatIsVisible) {
  for (const char* visible : kPatterns) {
    for (const char* always : {"", "window(2)", "sinks(1) | window(1)", "dense", "dilated(50)"}) {
      for (const ScoreKind kind : {ScoreKind::normal, ScoreKind::special, ScoreKind::few_values}) {
        const SelectCase c{.batch = 2,
                           .groups = 2,
                           .q_len = 150,
                           .entries = 150,
                           .k = 9,
                           .visible = pattern_or_none(visible),
                           .always = pattern_or_none(always),
                           .kind = kind,
                           .device = kGpu};
        EXPECT_EQ(check_top_k(c), "") << to_text(c);
      }
    }
  }
}

TEST_F(GpuSelect, TopKOfPlansPerGroup) {
  const SelectCase c{.batch = 2,
                     .groups = 3,
                     .q_len = 70,
                     .entries = 90,
                     .k = 6,
                     .visible = parse("per_head(causal, window(9), dilated(4))"),
                     .always = parse("per_head(sinks(2), ~dense, window(1))"),
                     .one_plan_for_all = false,
                     .device = kGpu};
  EXPECT_EQ(check_top_k(c), "") << to_text(c);
}

TEST_F(GpuSelect, TopKOfLongVisibleRows) {
  for (const char* visible :
       {"window(15000)", "causal", "dilated(3)", "window(19000) & dilated(2)"}) {
    const SelectCase c{.q_len = 3,
                       .entries = 40000,
                       .k = 700,
                       .visible = pattern_or_none(visible),
                       .always = window(20),
                       .device = kGpu};
    EXPECT_EQ(check_top_k(c), "") << to_text(c);
  }
}

TEST_F(GpuSelect, ScoresAreThoseOfTheDefinition) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::e4m3}) {
    for (const int64_t heads : {1, 4, 16, 20, 32, 64, 70}) {
      for (const int64_t head_dim : {8, 32, 64, 128, 136}) {
        const SelectCase c{.batch = 2,
                           .groups = heads == 4 ? 2 : 1,
                           .heads = heads,
                           .q_len = 21,
                           .entries = heads == 64 ? 700 : 200,
                           .head_dim = head_dim,
                           .dtype = dtype,
                           .has_w = heads != 16,
                           .has_scale = heads != 32,
                           .visible = pattern_or_none(
                               head_dim == 64 ? "" : kPatterns[(heads + head_dim / 8) % 10]),
                           .layout = head_dim == 32 ? Layout::bshd : Layout::contiguous,
                           .device = kGpu};
        EXPECT_EQ(check_scores(c), "") << to_text(c);
      }
    }
  }
}

// Rows that do not begin at multiples of 16 bytes, heads that share memory: what TMA cannot read.
TEST_F(GpuSelect, ScoresOfTensorsInAnyLayout) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::e4m3}) {
    for (int layout = 0; layout < kNumLayouts; ++layout) {
      const SelectCase c{.groups = 2,
                         .heads = 3,
                         .q_len = 9,
                         .entries = 70,
                         .head_dim = 64,
                         .dtype = dtype,
                         .has_scale = true,
                         .visible = causal(),
                         .layout = Layout(layout),
                         .device = kGpu};
      EXPECT_EQ(check_scores(c), "") << to_text(c);
      EXPECT_EQ(check_select_keys(c), "") << to_text(c);
    }
  }
}

TEST_F(GpuSelect, SelectedKeysAreTheBestOfTheScores) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::e4m3}) {
    for (const char* visible : {"", "causal", "window(40)", "dilated(3) | sinks(5)"}) {
      for (const int64_t k : {1, 20, 500}) {
        const SelectCase c{.batch = 2,
                           .groups = 2,
                           .heads = 16,
                           .q_len = 100,
                           .entries = 300,
                           .head_dim = 64,
                           .k = k,
                           .dtype = dtype,
                           .has_scale = true,
                           .visible = pattern_or_none(visible),
                           .always = pattern_or_none(k == 20 ? "window(3)" : ""),
                           .device = kGpu};
        EXPECT_EQ(check_select_keys(c), "") << to_text(c);
      }
    }
  }
}

TEST_F(GpuSelect, TheSameListsEveryTime) {
  const SelectCase c{.heads = 64,
                     .q_len = 300,
                     .entries = 9000,
                     .head_dim = 128,
                     .k = 500,
                     .dtype = DType::e4m3,
                     .visible = causal(),
                     .device = kGpu};
  std::vector<std::vector<int32_t>> first;
  for (int run = 0; run < 20; ++run) {
    SelectProblem p(c);
    SelectTensors tensors(p);
    select_keys(tensors.indexer, tensors.selection, p.options());
    tensors.finish();
    std::vector<std::vector<int32_t>> rows;
    for (int64_t i = 0; i < c.q_len; ++i) rows.push_back(p.indices.row(i));
    if (run == 0) first = rows;
    ASSERT_EQ(rows, first) << "run " << run;
  }
}

// The graph holds no data of the call that it was captured from, and its memory is its own.
TEST_F(GpuSelect, AGraphSelectsFromOtherData) {
  SelectCase c{.heads = 16,
               .q_len = 200,
               .entries = 400,
               .head_dim = 64,
               .k = 20,
               .dtype = DType::bf16,
               .visible = causal(),
               .always = window(1),
               .device = kGpu};
  SelectProblem p(c);
  SelectTensors tensors(p);
  SelectOptions options = p.options();
  select_keys(tensors.indexer, tensors.selection, options);  // the plans go to the GPU
  synchronize(kGpu);
  const Stream stream;
  options.stream = stream.get();
  const Graph graph(stream, [&] { select_keys(tensors.indexer, tensors.selection, options); });
  c.seed = 2;
  SelectProblem other(c);
  SelectTensors others(other);
  for (const auto& [to, from] : {std::pair{tensors.indexer.q, others.indexer.q},
                                 {tensors.indexer.k, others.indexer.k},
                                 {tensors.indexer.w, others.indexer.w}}) {
    const int64_t bytes = from.num_elements() * bytes_of(from.dtype);
    ASSERT_EQ(cudaMemcpy(to.data, from.data, size_t(bytes), cudaMemcpyDeviceToDevice), cudaSuccess);
  }
  synchronize(kGpu);  // a copy on the device does not wait, and the stream does not wait for it
  graph.launch(stream);
  select_keys(others.indexer, others.selection, other.options());
  tensors.finish();
  others.finish();
  for (int64_t i = 0; i < c.q_len; ++i) ASSERT_EQ(p.indices.row(i), other.indices.row(i)) << i;
}

TEST_F(GpuSelect, FewQueriesAtATime) {
  const SelectCase c{.heads = 2, .q_len = 500, .entries = 1000, .k = 30, .device = kGpu};
  SelectProblem p(c);
  SelectTensors tensors(p);
  const SelectOptions options = p.options();
  const std::string text = kernel_for_selection(tensors.indexer, options);
  EXPECT_NE(text.find("500 queries at a time"), std::string::npos) << text;
  EXPECT_EQ(check_select_keys(c), "");
}

}  // namespace
}  // namespace keyhole::test
