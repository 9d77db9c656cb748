// tests/gpu/index_loss_test.cpp
// Index losses on a GPU: those of the definition, the same bits every time, and in a CUDA graph
// that is replayed on other data.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "gpu/gpu_problem.h"
#include "gpu/graph.h"
#include "support/loss_cases.h"
#include "support/scale.h"

namespace keyhole::test {
namespace {

using GpuIndexLoss = GpuTest;

void check_all(std::vector<LossCase> cases) {
  for (LossCase& c : cases) {
    c.device = kGpu;
    EXPECT_EQ(check_loss(c), "") << to_text(c);
  }
}

TEST_F(GpuIndexLoss, OfPlans) {
  check_all(loss_cases_of_plans(std::array{DType::f32, DType::f16, DType::bf16}));
}
TEST_F(GpuIndexLoss, OfSelectedKeys) {
  check_all(
      loss_cases_of_selected_keys(std::array{DType::f32, DType::f16, DType::bf16, DType::e4m3}));
}
TEST_F(GpuIndexLoss, OfEntriesThatStandForSeveralKeys) {
  check_all(loss_cases_of_pooled_keys(std::array{DType::f32, DType::f16, DType::bf16}));
}
TEST_F(GpuIndexLoss, OnTensorCores) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (LossCase c : loss_cases_of_tensor_cores(dtype)) {
      c.device = kGpu;
      LossProblem p(c);
      const LossTensors tensors(p);
      EXPECT_EQ(loss_kernel(SelectOperation::loss, tensors).backend, "sm80") << to_text(c);
      EXPECT_EQ(loss_runs_on("sm80", tensors), dtype == DType::bf16) << to_text(c);
      EXPECT_EQ(check_loss(c), "") << to_text(c);
    }
  }
}

// More rows than there is scratch memory for at once, on tensor cores: as the kernel of any GPU.
TEST_F(GpuIndexLoss, OnTensorCoresAFewQueriesAtATime) {
  const LossCase c{.heads = 20,
                   .head_dim = 32,
                   .target_heads = 8,
                   .target_dim = 32,
                   .q_len = 1500,
                   .entries = 9000,
                   .dtype = DType::bf16,
                   .target_dtype = DType::bf16,
                   .pattern = dense(),
                   .selected = 6000,
                   .device = kGpu};
  LossProblem p(c), plain(c);
  LossTensors tensors(p), plain_tensors(plain);
  plain_tensors.options.backend = "simple";
  EXPECT_TRUE(loss_runs_on("sm80", tensors));
  for (const LossTensors* each : {&tensors, &plain_tensors}) each->forward(), each->backward();
  tensors.finish(), plain_tensors.finish();
  const auto expect_near = [](const PoisonedTensor& got, const PoisonedTensor& want, double share) {
    double size = 0;
    for (const double x : want.values()) size = std::max(size, std::abs(x));
    for (int64_t i = 0; i < want.num_elements(); ++i) {
      ASSERT_NEAR(got.get(i), want.get(i), share * size) << i;
    }
  };
  expect_near(p.loss, plain.loss, 1e-4);
  expect_near(p.dq, plain.dq, 0.02);
  expect_near(p.dk, plain.dk, 0.02);
  expect_near(p.dw, plain.dw, 1e-3);
}

TEST_F(GpuIndexLoss, OfAnyHeads) { check_all(loss_cases_of_heads()); }
TEST_F(GpuIndexLoss, KnowsSoftcapScaleAndKeysElsewhere) { check_all(loss_cases_of_rules()); }
TEST_F(GpuIndexLoss, OfSomeRows) { check_all(loss_cases_of_rows()); }

TEST_F(GpuIndexLoss, OfRandomCases) {
  for (int64_t i = 0; i < scaled(150); ++i) {
    LossCase c = random_loss_case(uint64_t(9000 + i), {DType::f32, DType::f16, DType::bf16});
    c.device = kGpu;
    c.target_dtype = std::array{DType::f32, DType::f16, DType::bf16, DType::f64}[size_t(i % 4)];
    EXPECT_EQ(check_loss(c), "") << to_text(c);
  }
}

TEST_F(GpuIndexLoss, OfLongRows) {
  for (const char* pattern : {"dense", "window(3000)", "dilated(40)"}) {
    for (const int64_t selected : {0, 2048}) {
      check_all({{.heads = 16,
                  .head_dim = 64,
                  .target_heads = 4,
                  .target_dim = 64,
                  .q_len = 3,
                  .entries = 9000,
                  .dtype = DType::bf16,
                  .target_dtype = DType::bf16,
                  .pattern = parse(pattern),
                  .selected = selected}});
    }
  }
  check_all({{.head_dim = 576, .target_dim = 576, .q_len = 70, .entries = 70}});
}

// A case on plain cores, and the same on tensor cores.
std::vector<LossCase> on_both_cores(LossCase c) {
  c.target_dim = 16, c.device = kGpu;
  LossCase on_tensor_cores = c;
  on_tensor_cores.dtype = on_tensor_cores.target_dtype = DType::bf16;
  return {c, on_tensor_cores};
}
void expect_own_core(const LossCase& c, const LossTensors& tensors) {
  const char* const backend = c.dtype == DType::bf16 ? "sm80" : "simple";
  EXPECT_TRUE(loss_runs_on(backend, tensors)) << to_text(c) << " does not run on " << backend;
}

TEST_F(GpuIndexLoss, NoRowAtAll) {
  for (const LossCase& c : on_both_cores({.q_len = 4, .entries = 40})) {
    LossProblem p(c);
    LossTensors tensors(p);
    expect_own_core(c, tensors);
    const GpuMemory unused(kGpu, 4);
    tensors.options.rows = IndexView(static_cast<const int32_t*>(unused.data()), {1, 1, 1, 0});
    tensors.options.rows.device = kGpu;
    tensors.forward();
    tensors.backward();
    tensors.finish();
    for (const PoisonedTensor* tensor : {&p.loss, &p.dq, &p.dk, &p.dw}) {
      for (const double x : tensor->values()) EXPECT_EQ(x, 0);
    }
  }
}

// What is not listed is not read: neither beyond the lists nor between their keys.
TEST_F(GpuIndexLoss, DoesNotReadWhatIsNotListed) {
  for (const int64_t selected : {0, 7}) {
    for (const LossCase& c : on_both_cores(
             {.q_len = 3, .entries = 300, .pattern = parse("dilated(7)"), .selected = selected})) {
      LossProblem p(c);
      const EntryPredicate listed = p.listed();
      for (int64_t s = 0; s < c.entries; ++s) {
        bool is_listed = false;
        for (int64_t t = 0; t < c.q_len; ++t) is_listed = is_listed || listed(0, 0, t, s);
        if (is_listed) continue;
        for (int64_t x = 0; x < c.head_dim; ++x) p.k.set(s * c.head_dim + x, std::nan(""));
        for (int64_t x = 0; x < c.target_dim; ++x) {
          p.target_k.set(s * c.target_dim + x, std::nan(""));
        }
      }
      LossTensors tensors(p);
      expect_own_core(c, tensors);
      tensors.forward();
      tensors.backward();
      tensors.finish();
      for (const PoisonedTensor* tensor : {&p.loss, &p.dq, &p.dk, &p.dw}) {
        for (const double x : tensor->values()) EXPECT_TRUE(std::isfinite(x));
      }
    }
  }
}

std::vector<std::vector<uint64_t>> bits_of(const LossProblem& p) {
  return {p.loss.bits(), p.stats.bits(), p.dq.bits(), p.dk.bits(), p.dw.bits()};
}

// Of 64 bits, in any order, with -1 between the keys.
TEST_F(GpuIndexLoss, ListsMayBeWideAndHavePaddingAnywhere) {
  for (const LossCase& c :
       on_both_cores({.groups = 2, .q_len = 30, .entries = 200, .selected = 9})) {
    LossProblem p(c), wide(c);
    LossTensors tensors(p), wide_tensors(wide);
    const IndexView lists = p.selected().indices;
    std::vector<int64_t> keys;
    for (int64_t row = 0; row < c.groups * c.q_len; ++row) {
      for (int64_t i = c.selected - 1; i >= 0; --i) {
        keys.push_back(-1);
        keys.push_back(static_cast<const int32_t*>(lists.data)[row * c.selected + i]);
      }
    }
    const GpuMemory memory(kGpu, int64_t(keys.size()) * 8);
    memory.copy_from_host(keys.data(), memory.bytes());
    IndexView view(static_cast<const int64_t*>(memory.data()),
                   {1, c.groups, c.q_len, 2 * c.selected});
    view.device = kGpu;
    wide_tensors.lists = view;
    for (LossTensors* each : {&tensors, &wide_tensors}) {
      expect_own_core(c, *each);
      each->forward();
      each->backward();
      each->finish();
    }
    EXPECT_EQ(bits_of(wide), bits_of(p)) << to_string(c.dtype);
  }
}

TEST_F(GpuIndexLoss, TheSameBitsEveryTime) {
  for (const int64_t selected : {0, 100}) {
    const LossCase c{.groups = 2,
                     .heads = 16,
                     .head_dim = 64,
                     .target_heads = 8,
                     .kv_heads = 2,
                     .target_dim = 64,
                     .q_len = 300,
                     .entries = 300,
                     .dtype = DType::bf16,
                     .target_dtype = DType::bf16,
                     .selected = selected,
                     .device = kGpu};
    std::vector<std::vector<uint64_t>> first;
    for (int run = 0; run < 20; ++run) {
      LossProblem p(c);
      LossTensors tensors(p);
      tensors.options.deterministic = run % 2 == 1;  // it is either way
      EXPECT_TRUE(loss_runs_on("sm80", tensors));
      tensors.forward();
      tensors.backward();
      tensors.finish();
      if (run == 0) first = bits_of(p);
      ASSERT_EQ(bits_of(p), first) << "run " << run;
    }
  }
}

// The graph holds no data of the call that it was captured from, and its memory is its own.
void expect_graph_to_learn_from_other_data(const LossCase& c) {
  LossProblem p(c);
  LossTensors tensors(p);
  expect_own_core(c, tensors);
  const auto learn = [](const LossTensors& from) {
    from.forward();
    from.backward();
  };
  learn(tensors);  // the plan goes to the GPU
  synchronize(kGpu);
  const Stream stream;
  tensors.options.stream = stream.get();
  const Graph graph(stream, [&] { learn(tensors); });
  LossCase other_case = c;
  other_case.seed = 2;
  LossProblem other(other_case);
  LossTensors others(other);
  const auto copy = [](const TensorView& to, const TensorView& from) {
    const int64_t bytes = from.num_elements() * bytes_of(from.dtype);
    ASSERT_EQ(cudaMemcpy(to.data, from.data, size_t(bytes), cudaMemcpyDeviceToDevice), cudaSuccess);
  };
  copy(tensors.indexer.q, others.indexer.q);
  copy(tensors.indexer.k, others.indexer.k);
  copy(tensors.indexer.w, others.indexer.w);
  copy(tensors.target.q, others.target.q);
  copy(tensors.target.k, others.target.k);
  copy(tensors.target.lse, others.target.lse);
  copy(tensors.dloss, others.dloss);
  if (c.selected > 0) {
    const auto lists_of = [](const LossTensors& from) {
      const auto& lists = std::get<KeyListView>(from.lists.get()).indices;
      return TensorView(lists.data, DType::f32,  // as wide as those
                        {lists.shape[0], lists.shape[1], lists.shape[2], lists.shape[3]});
    };
    copy(lists_of(tensors), lists_of(others));
  }
  synchronize(kGpu);  // a copy on the device does not wait, and the stream does not wait for it
  graph.launch(stream);
  synchronize(kGpu);
  learn(others);
  tensors.finish();
  others.finish();
  EXPECT_EQ(bits_of(p), bits_of(other));
}

TEST_F(GpuIndexLoss, AGraphLearnsFromOtherData) {
  for (const int64_t selected : {0, 20}) {
    for (const LossCase& c : on_both_cores(
             {.heads = 4, .head_dim = 32, .q_len = 100, .entries = 100, .selected = selected})) {
      expect_graph_to_learn_from_other_data(c);
    }
  }
}

// More queries than there is scratch memory for at once: the gradients of all are those of two
// halves that each fit.
TEST_F(GpuIndexLoss, AFewQueriesAtATime) {
  constexpr int64_t kQueries = 20000, kEntries = 131072, kDim = 8, kSelected = 4;
  Random random(1);
  const auto drawn = [&](std::initializer_list<int64_t> shape) {
    GpuTensor tensor(DType::f32, shape);
    tensor.draw(random);
    return tensor;
  };
  const GpuTensor q = drawn({1, 1, kQueries, kDim}), k = drawn({1, 1, kEntries, kDim});
  const GpuTensor target_q = drawn({1, 1, kQueries, kDim}),
                  target_k = drawn({1, 1, kEntries, kDim});
  const GpuTensor lse = drawn({1, 1, kQueries}), dloss = drawn({1, 1, kQueries});
  const GpuTensor loss(DType::f32, {1, 1, kQueries}), stats(DType::f32, {1, 1, kQueries, 2});
  std::vector<int32_t> keys;
  for (int64_t i = 0; i < kQueries * kSelected; ++i) {  // no key twice in a list
    keys.push_back(
        int32_t(i % kSelected * (kEntries / kSelected) + random.below(kEntries / kSelected)));
  }
  const auto on_gpu = [](const std::vector<int32_t>& numbers) {
    GpuMemory memory(kGpu, int64_t(numbers.size()) * 4);
    memory.copy_from_host(numbers.data(), memory.bytes());
    return memory;
  };
  const GpuMemory keys_there = on_gpu(keys);
  const auto view_of = [](const GpuMemory& memory, std::initializer_list<int64_t> shape) {
    IndexView view(static_cast<const int32_t*>(memory.data()), shape);
    view.device = kGpu;
    return view;
  };
  const IndexView lists = view_of(keys_there, {1, 1, kQueries, kSelected});
  struct Gradients {
    std::vector<float> loss, dq, dk;
  };
  const auto learn = [&](const IndexLossOptions& options) {
    const GpuTensor dq(DType::f32, {1, 1, kQueries, kDim}), dk(DType::f32, {1, 1, kEntries, kDim});
    const IndexerView indexer{q.view(), k.view()};
    const AttentionTarget target{target_q.view(), target_k.view(), lse.view()};
    index_loss_forward(indexer, target, lists, loss.view(), stats.view(), options);
    index_loss_backward(dloss.view(), indexer, target, lists, stats.view(), {dq.view(), dk.view()},
                        options);
    return Gradients{loss.read(), dq.read(), dk.read()};
  };
  const Gradients all = learn({});
  std::vector<double> dk(all.dk.size(), 0);
  for (const int64_t first : {0, 1}) {
    std::vector<int32_t> rows;
    for (int64_t t = first; t < kQueries; t += 2) rows.push_back(int32_t(t));
    const GpuMemory rows_there = on_gpu(rows);
    const Gradients half = learn({.rows = view_of(rows_there, {1, 1, 1, int64_t(rows.size())})});
    for (int64_t t = 0; t < kQueries; ++t) {
      const bool counts = t % 2 == first;
      ASSERT_EQ(half.loss[size_t(t)], counts ? all.loss[size_t(t)] : 0) << t;
      for (int64_t x = t * kDim; x < (t + 1) * kDim; ++x) {
        ASSERT_EQ(half.dq[size_t(x)], counts ? all.dq[size_t(x)] : 0) << t;
      }
    }
    std::ranges::transform(dk, half.dk, dk.begin(), std::plus());
  }
  for (size_t i = 0; i < dk.size(); ++i) {
    ASSERT_NEAR(all.dk[i], dk[i], 1e-5 * std::max(1.0, std::abs(dk[i]))) << i;
  }
}

}  // namespace
}  // namespace keyhole::test
