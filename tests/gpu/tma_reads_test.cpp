// tests/gpu/tma_reads_test.cpp
// What TMA reads of q, k and v: every row of every residue class, zeros beyond the last one
// whatever lies there, and tensors that it cannot read at all go to another kernel with a reason. A
// NaN behind the last row would be repaired by the exact path, and never be seen in a result: so
// boxes are looked at as they arrive.
#include <deque>
#include <iostream>

#include "base/check.h"
#include "gpu/gpu_problem.h"
#include "judge/layout.h"
#include "plan/plan_state.h"
#include "plan/residues.h"
#include "support/check_case.h"
#include "support/gpu/box_probe.h"

namespace keyhole::test {
namespace {

#ifdef KEYHOLE_HAVE_SM90

class TmaReads : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped() && gpu(kGpu).compute_capability != 90) {
      GTEST_SKIP() << "sm90 kernels are for GPUs of compute capability 9.0";
    }
  }
};

// A tensor in a moat of NaN, whose elements say where they are.
class Marked {
 public:
  Marked(const std::vector<int64_t>& shape, Layout layout)
      : placed_(place(DType::bf16, shape, layout)), memory_(kGpu, placed_.bytes()) {
    std::vector<uint16_t> bits(size_t(placed_.elements), judge::kNanMoat);
    for (int64_t b = 0; b < shape[0]; ++b) {
      for (int64_t h = 0; h < shape[1]; ++h) {
        for (int64_t i = 0; i < shape[2]; ++i) {
          for (int64_t x = 0; x < shape[3]; ++x) {
            bits[size_t(placed_.first + b * stride(0) + h * stride(1) + i * stride(2) + x)] =
                mark(b, h, i, x);
          }
        }
      }
    }
    memory_.copy_from_host(bits.data(), placed_.bytes());
    synchronize(kGpu);
  }
  static uint16_t mark(int64_t batch, int64_t head, int64_t index, int64_t col) {
    return uint16_t(1 + (((batch * 3 + head) * 1009 + index) * 131 + col) * 40503 % 30011);
  }
  int64_t stride(int dim) const { return placed_.view.strides[dim]; }
  device::DeviceTensor tensor() const {
    return {static_cast<std::byte*>(memory_.data()) + placed_.first_byte(), stride(0), stride(1),
            stride(2)};
  }

 private:
  judge::Placement placed_;
  GpuMemory memory_;
};

int64_t check_boxes(const sm90::RowMaps& maps, int rows, const std::vector<int64_t>& shape,
                    int32_t stride, const std::string& what) {
  std::vector<BoxPlace> places;
  for (int32_t first = 0; first < stride; ++first) {
    for (int32_t batch = 0; batch < shape[0]; ++batch) {
      for (int32_t head = 0; head < shape[1]; ++head) {
        // One box more than there are rows for.
        for (int32_t row = 0; row <= shape[2] / stride + rows; row += rows) {
          for (int32_t col = 0; col < shape[3]; col += sm90::kBoxColumns) {
            places.push_back({col, row, first, head, batch});
          }
        }
      }
    }
  }
  const std::vector<uint16_t> got = read_boxes(maps, rows, places);
  int64_t wrong = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const BoxPlace& place = places[i / size_t(rows * sm90::kBoxColumns)];
    const int64_t col = place.column + int64_t(i) % sm90::kBoxColumns;
    const int64_t row = place.row + int64_t(i) / sm90::kBoxColumns % rows;
    const int64_t index = place.first + stride * row;
    const uint16_t want = index < shape[2] && col < shape[3]
                              ? Marked::mark(place.batch, place.head, index, col)
                              : uint16_t{0};
    if (got[i] == want) continue;
    if (++wrong <= 3) {
      ADD_FAILURE() << what << ": class " << place.first << " of " << stride << ", head "
                    << place.head << ", row " << row << ", column " << col << " is " << got[i]
                    << ", not " << want;
    }
  }
  EXPECT_EQ(wrong, 0) << what;
  return int64_t(places.size());
}

TEST_F(TmaReads, EveryRowArrivesAndNothingBehindTheLast) {
  struct Classes {
    int32_t stride;
    int64_t rows;  // of a class, with every remainder
  };
  int64_t num_boxes = 0;
  for (const Classes& classes : {Classes{1, 0},
                                 {1, 1},
                                 {1, 63},
                                 {1, 128},
                                 {1, 200},
                                 {2, 64},
                                 {3, 0},
                                 {3, 128},
                                 {8, 0},
                                 {8, 1},
                                 {8, 63}}) {
    for (int64_t rest = 0; rest < classes.stride; ++rest) {
      const int64_t length = classes.stride * classes.rows + rest;
      for (const int64_t cols : {8, 64, 72, 128}) {
        for (const Layout layout : {Layout::contiguous, Layout::bshd, Layout::sliced}) {
          const std::vector<int64_t> shape = {2, 3, length, cols};
          const Marked marked(shape, layout);
          device::ForwardParams params{};
          params.sizes = {.batch = 2,
                          .heads = 3,
                          .kv_heads = 3,
                          .head_dim = int32_t(cols),
                          .v_head_dim = int32_t(cols),
                          .q_len = length,
                          .k_len = length};
          params.q = params.k = params.v = params.out = marked.tensor();
          params.view.stride = classes.stride;
          const sm90::ForwardMaps maps = sm90::forward_maps(params, DType::bf16, 64, 128);
          const std::string what = say(length, " rows of ", cols, ", ", to_string(layout));
          num_boxes += check_boxes(maps.q, 64, shape, classes.stride, what);
          num_boxes += check_boxes(maps.k, 128, shape, classes.stride, what);
          num_boxes += check_boxes(maps.v, 128, shape, classes.stride, what);
          num_boxes += check_boxes(maps.out, sm90::kWarpRows, shape, classes.stride, what);
        }
      }
    }
  }
  std::cout << num_boxes << " boxes\n";
}

// Without a key there may be no memory for keys, either.
TEST_F(TmaReads, NoKeysAtAll) {
  const Marked queries({1, 1, 130, 64}, Layout::contiguous);
  device::ForwardParams params{};
  params.sizes = {.head_dim = 64, .v_head_dim = 64, .q_len = 130, .k_len = 0};
  params.q = params.out = queries.tensor();
  for (const int32_t stride : {1, 3}) {
    params.view.stride = stride;
    const sm90::ForwardMaps maps = sm90::forward_maps(params, DType::f16, 128, 128);
    check_boxes(maps.k, 128, {1, 1, 0, 64}, stride, "no keys");
    check_boxes(maps.q, 128, {1, 1, 130, 64}, stride, "queries beside no keys");
  }
}

// The kernels on residue classes of every length, in every layout that they take.
TEST_F(TmaReads, KernelsFollowClassesOfEveryLength) {
  CheckStats stats;
  for (const int64_t stride : {2, 3, 8}) {
    for (int64_t rest = 0; rest < stride; ++rest) {
      Case c = parse_case(say("pattern=and(causal,dilated(", stride, ")) heads=2 kv_heads=1"));
      c.forms = int(SplitPolicy::residues), c.tile = int(rest);
      c.k_len = 128 * stride + rest;
      c.q_len = c.k_len - (rest % 2 == 0 ? 0 : 64 * stride + 1);  // classes of q begin elsewhere
      for (const int64_t head_dim : {64, 72, 128}) {
        c.head_dim = c.v_head_dim = head_dim;
        c.dtype = rest % 2 == 0 ? DType::bf16 : DType::f16;
        for (const Layout layout : {Layout::contiguous, Layout::bshd, Layout::sliced}) {
          for (const Tensor tensor : {Tensor::q, Tensor::k, Tensor::v, Tensor::out}) {
            c.layouts[size_t(tensor)] = layout;
          }
          for (const KernelChoice& kernel : kernels_for(c)) {
            if (kernel.forward->backend != "sm90") continue;
            const Failure failure = check_case_with(c, kernel, &stats);
            EXPECT_FALSE(failure) << kernel.forward->name << "\n  " << failure.kind << ": "
                                  << failure.detail << "\n  " << to_text(c);
          }
        }
      }
    }
  }
  EXPECT_GE(stats.kernel_runs, 468) << "kernels x layouts x lengths, but:" << stats.refused.text();
  std::cout << stats.kernel_runs << " kernel runs, " << stats.pairs << " pairs\n";
}

// Among the reasons of all kernels that were asked.
void expect_refusal(const std::string& reason, const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unsupported);
    EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
    return;
  }
  ADD_FAILURE() << "no error, where this one is due: " << reason;
}

TEST_F(TmaReads, WhatTmaCannotReadGoesToAnotherKernelWithAReason) {
  constexpr int64_t kLength = 300;
  const GpuProblem p(
      {.heads = 4, .kv_heads = 2, .q_len = kLength, .k_len = kLength, .has_sink = false});
  const Plan made = plan(parse("causal"), kLength, kLength);
  const TensorView &q = p.q.view(), &k = p.k.view(), &out = p.out.view(), &lse = p.lse.view();
  EXPECT_EQ(kernel_for_forward(q, p.v.view(), made).find("sm90.forward"), 0u);
  TensorView shared = p.v.view();  // both kv heads read the values of the first
  shared.strides[1] = 0;
  EXPECT_EQ(kernel_for_forward(q, shared, made).find("sm80.forward"), 0u);
  expect_refusal("reads tensors whose strides are positive, not 0 for heads",
                 [&] { attention_forward(q, k, shared, made, out, lse, by_backend("sm90")); });
  attention_forward(q, k, shared, made, out, lse);
  const auto got = p.results(Operation::forward);
  attention_forward(q, k, shared, made, out, lse, by_backend("sm80"));
  EXPECT_TRUE(p.results(Operation::forward) == got);
}

// The gradient of the output is read by TMA, too. A workspace is asked for before it is there: what
// was said must do for the kernel that takes it, which here sums up what sm90 would write at once.
TEST_F(TmaReads, AGradientThatTmaCannotReadGoesToAnotherKernelToo) {
  constexpr int64_t kLength = 300;
  const GpuProblem p(
      {.heads = 4, .kv_heads = 4, .q_len = kLength, .k_len = kLength, .has_sink = false});
  const Plan made = plan(parse("blocks(16)"), kLength, kLength);
  const TensorView &q = p.q.view(), &k = p.k.view(), &v = p.v.view();
  attention_forward(q, k, v, made, p.out.view(), p.lse.view());
  TensorView shared = p.dout.view();  // of all heads
  shared.strides[1] = 0;
  const auto backward = [&](const AttentionOptions& options) {
    p.spoil(Operation::backward);
    attention_backward(shared, q, k, v, p.out.view(), p.lse.view(), made,
                       {p.dq.view(), p.dk.view(), p.dv.view(), {}}, options);
    return p.results(Operation::backward);
  };
  expect_refusal("sm90: reads tensors whose strides are positive, not 0 for heads",
                 [&] { backward(by_backend("sm90")); });
  const GpuMemory workspace(
      kGpu, backward_workspace_bytes(shared, q, k, v, p.out.view(), p.lse.view(), made,
                                     {p.dq.view(), p.dk.view(), p.dv.view(), {}}));
  AttentionOptions options;
  options.workspace = {workspace.data(), workspace.bytes()};
  EXPECT_TRUE(backward(options) == backward(by_backend("sm80")));
}

// The other kernel has other tiles, and so other chunks of long lists: the workspace is that of the
// very call.
TEST_F(TmaReads, TheWorkspaceIsThatOfTheKernelThatTakesTheGradient) {
  constexpr int64_t kLength = 16384;
  const GpuProblem p({.heads = 16,
                      .kv_heads = 16,
                      .q_len = kLength,
                      .k_len = kLength,
                      .head_dim = 128,
                      .has_sink = false});
  const Plan made = plan(parse("bigbird(64, 3, 3, 2, 1)"), kLength, kLength);
  const TensorView &q = p.q.view(), &k = p.k.view(), &v = p.v.view();
  attention_forward(q, k, v, made, p.out.view(), p.lse.view());
  TensorView shared = p.dout.view();  // of all heads
  shared.strides[1] = 0;
  const Gradients gradients{p.dq.view(), p.dk.view(), p.dv.view(), {}};
  for (const TensorView& dout : {shared, p.dout.view()}) {
    const GpuMemory workspace(
        kGpu, backward_workspace_bytes(dout, q, k, v, p.out.view(), p.lse.view(), made, gradients));
    AttentionOptions options;
    options.workspace = {workspace.data(), workspace.bytes()};
    EXPECT_NO_THROW(
        attention_backward(dout, q, k, v, p.out.view(), p.lse.view(), made, gradients, options));
    synchronize(kGpu);
  }
  synchronize(kGpu);
}

// Work is dealt out by the heads whose keys fit the cache, so that one plan is dealt out anew for
// other widths and other groups of heads; neither gets the other's.
TEST_F(TmaReads, OnePlanServesSeveralShapes) {
  constexpr int64_t kLength = 32768;
  const char* text = "causal & (window(300) | sinks(4))";
  const Plan shared = plan(parse(text), kLength, kLength);
  const ProblemSizes all[] = {
      {.heads = 6, .kv_heads = 6, .q_len = kLength, .k_len = kLength, .head_dim = 128},
      {.heads = 6, .kv_heads = 6, .q_len = kLength, .k_len = kLength, .head_dim = 64},
      {.heads = 6, .kv_heads = 2, .q_len = kLength, .k_len = kLength, .head_dim = 64},
      {.heads = 5, .kv_heads = 1, .q_len = kLength, .k_len = kLength, .head_dim = 256},
  };
  std::deque<GpuProblem> problems;
  std::vector<std::vector<std::byte>> wanted;
  for (const ProblemSizes& sizes : all) {
    const GpuProblem& problem = problems.emplace_back(sizes);
    problem.forward(plan(parse(text), kLength, kLength), by_backend("sm90"));
    wanted.push_back(problem.results(Operation::forward));
  }
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < problems.size(); ++i) {
      problems[i].spoil(Operation::forward);
      problems[i].forward(shared, by_backend("sm90"));
      EXPECT_TRUE(problems[i].results(Operation::forward) == wanted[i])
          << all[i].heads << " heads on " << all[i].kv_heads << ", head_dim " << all[i].head_dim;
    }
  }
}

#endif

}  // namespace
}  // namespace keyhole::test
