// tests/gpu/tile_lists_test.cpp
// Tile lists that lie on a GPU, through the public functions: every backend against the definition,
// entries that are no tiles, and lists that a graph's own kernels change.
#include <cmath>

#include "gpu/gpu_problem.h"
#include "reference/attention.h"
#include "support/tile_list_problem.h"

namespace keyhole::test {
namespace {

using GpuTileLists = GpuTest;

// The lists of a problem, on the GPU.
class ListsOnGpu {
 public:
  explicit ListsOnGpu(const TileListProblem& p)
      : view_(p.view()),
        tiles_(kGpu, int64_t(p.tiles.size())),
        counts_(kGpu, int64_t(p.counts.size())),
        bitmap_of_(kGpu, int64_t(p.bitmap_of.size())),
        bitmaps_(kGpu, int64_t(p.bitmaps.size() * 8)) {
    view_.tiles.data = tiles_.data(), view_.tiles.device = kGpu;
    if (view_.counts.is_given()) view_.counts.data = counts_.data(), view_.counts.device = kGpu;
    if (view_.bitmap_of.is_given()) {
      view_.bitmap_of.data = bitmap_of_.data(), view_.bitmap_of.device = kGpu;
      view_.bitmaps = static_cast<const uint64_t*>(bitmaps_.data());
    }
    write(p, nullptr);
    bitmaps_.copy_from_host(p.bitmaps.data(), int64_t(p.bitmaps.size() * 8));
    synchronize(kGpu);
  }
  // In stream order, so that a graph may have it: the lists are then those of `p`, from memory of
  // the GPU.
  void write(const TileListProblem& p, cudaStream_t stream) const {
    const auto copy = [&](const GpuMemory& to, const std::vector<std::byte>& from) {
      if (from.empty()) return;
      check_cuda(
          cudaMemcpyAsync(to.data(), from.data(), from.size(), cudaMemcpyHostToDevice, stream),
          "copying lists");
    };
    copy(tiles_, p.tiles);
    copy(counts_, p.counts);
    copy(bitmap_of_, p.bitmap_of);
  }
  const TileListView& view() const { return view_; }
  const GpuMemory& tiles() const { return tiles_; }
  const GpuMemory& counts() const { return counts_; }

 private:
  TileListView view_;
  GpuMemory tiles_, counts_, bitmap_of_, bitmaps_;
};

struct Problem {
  TileListCase c;
  GpuTensor q, k, v, dout, out, lse, dq, dk, dv;

  Problem(const TileListCase& of, const TileListProblem& p) : c(of) {
    const auto rows = [&] {
      return GpuTensor(DType::bf16, {c.batch, c.heads, c.q_len, c.head_dim});
    };
    const auto keys = [&] {
      return GpuTensor(DType::bf16, {c.batch, c.kv_heads, c.k_len, c.head_dim});
    };
    q = rows(), dout = rows(), out = rows(), dq = rows();
    k = keys(), v = keys(), dk = keys(), dv = keys();
    lse = GpuTensor(DType::f32, {c.batch, c.heads, c.q_len});
    q.write(p.q), k.write(p.k), v.write(p.v), dout.write(p.dout);
  }
  Gradients gradients() const { return {dq.view(), dk.view(), dv.view(), {}}; }
  void forward(const Lists& lists, const AttentionOptions& options) const {
    attention_forward(q.view(), k.view(), v.view(), lists, out.view(), lse.view(), options);
  }
  void backward(const Lists& lists, const AttentionOptions& options) const {
    attention_backward(dout.view(), q.view(), k.view(), v.view(), out.view(), lse.view(), lists,
                       gradients(), options);
  }
  int64_t workspace(const Lists& lists, const AttentionOptions& options) const {
    return std::max(forward_workspace_bytes(q.view(), k.view(), v.view(), lists, out.view(),
                                            lse.view(), options),
                    backward_workspace_bytes(dout.view(), q.view(), k.view(), v.view(), out.view(),
                                             lse.view(), lists, gradients(), options));
  }
  void spoil() const {
    for (const GpuTensor* tensor : {&out, &lse, &dq, &dk, &dv}) tensor->fill(0xff);
  }
};

// Products of rounded weights: a few hundredths of what rows of 64 normal numbers add up to.
void expect_near(const GpuTensor& got_tensor, const std::vector<double>& want, double allowed,
                 const char* name) {
  const std::vector<float> got = got_tensor.read();
  ASSERT_EQ(got.size(), want.size());
  double square = 0;
  for (const double x : want) square += std::isinf(x) ? 0 : x * x;
  const double scale = std::sqrt(square / double(std::max<size_t>(1, want.size())));
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isinf(want[i])) {
      ASSERT_EQ(double(got[i]), want[i]) << name << " " << i;
    } else {
      ASSERT_NEAR(double(got[i]), want[i], allowed * (scale + std::fabs(want[i])))
          << name << " " << i;
    }
  }
}

struct Wanted {
  ReferenceOutput output;
  ReferenceGradients gradients;

  Wanted(const TileListCase& c, const TileListProblem& p) {
    const TensorView q(p.q.data(), DType::f32, {c.batch, c.heads, c.q_len, c.head_dim});
    const TensorView k(p.k.data(), DType::f32, {c.batch, c.kv_heads, c.k_len, c.head_dim});
    const TensorView v(p.v.data(), DType::f32, {c.batch, c.kv_heads, c.k_len, c.head_dim});
    const TensorView dout(p.dout.data(), DType::f32, {c.batch, c.heads, c.q_len, c.head_dim});
    AttentionOptions options;
    options.softcap = c.softcap;
    const Pattern pattern = p.pattern();
    output = reference_forward(pattern, q, k, v, options, /*offset=*/0);
    gradients = reference_backward(pattern, dout, q, k, v, options, /*offset=*/0);
  }
  void expect(const Problem& got) const {
    expect_near(got.lse, output.lse, 0.01, "lse");
    expect_near(got.out, output.out, 0.03, "out");
    expect_near(got.dq, gradients.dq, 0.06, "dq");
    expect_near(got.dk, gradients.dk, 0.06, "dk");
    expect_near(got.dv, gradients.dv, 0.06, "dv");
  }
};

// Backends by name; a backward pass that one cannot do in order, or with a softcap, goes to the
// next.
AttentionOptions options_for(const TileListCase& c, const std::string& backend,
                             bool deterministic) {
  AttentionOptions options;
  options.backend = backend;
  options.softcap = c.softcap;
  options.deterministic = deterministic;
  return options;
}
bool takes(const Problem& problem, const Lists& lists, const AttentionOptions& options) {
  try {
    kernel_for_forward(problem.q.view(), problem.v.view(), lists, options);
    kernel_for_backward(problem.q.view(), problem.v.view(), lists, options);
  } catch (const Error&) {
    return false;
  }
  return true;
}

TEST_F(GpuTileLists, AgreeWithThePatternThatSaysTheSame) {
  uint64_t seed = 1;
  int taken = 0;
  for (const TileListCase& c : tile_list_cases()) {
    const TileListProblem p(c, seed++);
    const Problem problem(c, p);
    const ListsOnGpu lists(p);
    const Wanted want(c, p);
    for (const char* backend : {"auto", "simple", "sm80", "sm90"}) {
      for (const bool deterministic : {false, true}) {
        AttentionOptions options = options_for(c, backend, deterministic);
        if (!takes(problem, lists.view(), options)) continue;
        SCOPED_TRACE(to_string(c) + ", " + backend + (deterministic ? ", deterministic" : ""));
        const GpuMemory workspace(kGpu, problem.workspace(lists.view(), options));
        workspace.fill(0xff);
        options.workspace = {workspace.data(), workspace.bytes()};
        problem.spoil();
        problem.forward(lists.view(), options);
        problem.backward(lists.view(), options);
        want.expect(problem);
        if (HasFatalFailure()) return;
        ++taken;
      }
    }
  }
  EXPECT_GT(taken, 40);
}

// Wide heads have a kernel for small tiles there. Narrow ones have not, and leave that one alone.
TEST_F(GpuTileLists, OnHopperWideHeadsFollowSmallTiles) {
  if (gpu(kGpu).compute_capability != 90) GTEST_SKIP() << "needs sm_90";
  for (const int64_t head_dim : {64, 128, 136, 192, 200, 256}) {
    for (const double softcap : {0., 2.}) {
      const TileListCase c{.tile = {64, 64}, .head_dim = head_dim, .softcap = softcap};
      const TileListProblem p(c, 3);
      const Problem problem(c, p);
      const ListsOnGpu lists(p);
      for (const bool deterministic : {false, true}) {
        const AttentionOptions options = options_for(c, "auto", deterministic);
        const std::string kernel =
            kernel_for_backward(problem.q.view(), problem.v.view(), lists.view(), options);
        EXPECT_EQ(kernel.starts_with("sm90.backward."), head_dim > 128)
            << to_string(c) << ": " << kernel;
      }
    }
  }
}

// Nobody has checked what a kernel writes: what is no tile, no bitmap and no count does no harm.
TEST_F(GpuTileLists, EntriesThatAreNoneCountNothing) {
  for (const bool is_wide : {false, true}) {
    const TileListCase c{
        .tile = {256, 256}, .is_wide = is_wide, .has_counts = true, .has_bitmaps = true};
    const TileListProblem p(c, 3);
    const Problem problem(c, p);
    const ListsOnGpu lists(p);
    for (const int byte : {0x7f, 0x80, 0xff}) {
      lists.tiles().fill(byte);
      problem.spoil();
      problem.forward(lists.view(), {});
      problem.backward(lists.view(), {});
      for (const float x : problem.out.read()) ASSERT_EQ(x, 0);
      for (const float x : problem.lse.read()) ASSERT_EQ(x, -INFINITY);
      for (const GpuTensor* tensor : {&problem.dq, &problem.dk, &problem.dv}) {
        for (const float x : tensor->read()) ASSERT_EQ(x, 0);
      }
    }
    lists.write(p, nullptr);
    lists.counts().fill(0xff);  // -1
    problem.forward(lists.view(), {});
    for (const float x : problem.out.read()) ASSERT_EQ(x, 0);
  }
}

// Forward and backward in one graph, whose lists come from memory that changes between replays.
TEST_F(GpuTileLists, AGraphFollowsListsThatItFillsItself) {
  const TileListCase c{.tile = {128, 128},
                       .heads = 4,
                       .kv_heads = 2,
                       .list_heads = 2,
                       .q_len = 500,
                       .k_len = 700,
                       .head_dim = 128,
                       .has_counts = true};
  TileListProblem p(c, 1);
  const Problem problem(c, p);
  const ListsOnGpu lists(p), selected(p);
  const Stream stream;
  AttentionOptions options;
  options.stream = stream.get();
  const GpuMemory workspace(kGpu, problem.workspace(lists.view(), options));
  options.workspace = {workspace.data(), workspace.bytes()};
  synchronize(kGpu);
  check_cuda(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), "capturing");
  check_cuda(cudaMemcpyAsync(lists.tiles().data(), selected.tiles().data(),
                             size_t(lists.tiles().bytes()), cudaMemcpyDeviceToDevice, stream.get()),
             "filling lists");
  check_cuda(
      cudaMemcpyAsync(lists.counts().data(), selected.counts().data(),
                      size_t(lists.counts().bytes()), cudaMemcpyDeviceToDevice, stream.get()),
      "filling counts");
  problem.forward(lists.view(), options);
  problem.backward(lists.view(), options);
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamEndCapture(stream.get(), &graph), "capturing");
  cudaGraphExec_t runnable = nullptr;
  check_cuda(cudaGraphInstantiate(&runnable, graph, 0), "making a graph runnable");
  for (uint64_t seed = 11; seed < 14; ++seed) {
    TileListProblem other(c, seed);
    other.q = p.q, other.k = p.k, other.v = p.v, other.dout = p.dout;
    selected.write(other, nullptr);
    synchronize(kGpu);
    problem.spoil();
    synchronize(kGpu);
    check_cuda(cudaGraphLaunch(runnable, stream.get()), "launching a graph");
    synchronize(kGpu);
    Wanted(c, other).expect(problem);
    if (HasFatalFailure()) break;
  }
  cudaGraphExecDestroy(runnable);
  cudaGraphDestroy(graph);
}

TEST_F(GpuTileLists, WhatCannotBeServedIsRefusedByName) {
  const TileListCase c{};
  const TileListProblem p(c, 3);
  const Problem problem(c, p);
  ListsOnGpu lists(p);
  TileListView odd = lists.view();
  odd.tile = {50, 64};
  try {
    problem.forward(odd, {});
    ADD_FAILURE() << "tiles of 50x64 were followed";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unsupported);
    EXPECT_NE(std::string(error.what())
                  .find("simple: follows tiles of 64x64, 32x32; the lists are "
                        "of tiles of 50x64"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace keyhole::test
