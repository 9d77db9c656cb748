// tests/gpu/gather_test.cpp
// Attention over an index tensor that lies on a GPU, through the public functions: every backend
// against the definition, entries that are no keys, bits, graphs, and the check that waits.
#include <cmath>
#include <functional>
#include <iostream>
#include <limits>

#include "gpu/gpu_problem.h"
#include "support/gather_cases.h"
#include "support/gpu_copies.h"
#include "support/message_of.h"

namespace keyhole::test {
namespace {

using GpuGather = GpuTest;

// The indices of a problem on the GPU; they may change there between calls.
class GpuIndices {
 public:
  explicit GpuIndices(const IndexMemory& from)
      : lists_(from.lists()),
        memory_(kGpu, std::max<int64_t>(1, int64_t(from.bytes().size()))),
        counts_(kGpu, std::max<int64_t>(1, int64_t(from.count_bytes().size()))) {
    lists_.indices.data = static_cast<const std::byte*>(memory_.data()) + from.offset_bytes();
    lists_.indices.device = kGpu;
    if (lists_.counts.is_given()) lists_.counts.data = counts_.data();
    lists_.counts.device = kGpu;
    write(from);
  }
  void write(const IndexMemory& from) const {
    const std::vector<std::byte> bytes = from.bytes(), counts = from.count_bytes();
    memory_.copy_from_host(bytes.data(), int64_t(bytes.size()));
    counts_.copy_from_host(counts.data(), int64_t(counts.size()));
    synchronize(kGpu);
  }
  const KeyListView& view() const { return lists_; }

 private:
  KeyListView lists_;
  GpuMemory memory_, counts_;
};

// The call on copies, in a workspace as large as asked for; what came back is in the problem.
void forward(GatherProblem& p, GatherOptions options) {
  GpuCopies copies;
  const GpuIndices indices(p.indices);
  const TensorView q = copies.input(p.q), k = copies.input(p.k), v = copies.input(p.v);
  const TensorView out = copies.output(p.out), lse = copies.output(p.lse);
  options.sink = copies.input(p.sink);
  const int64_t bytes = forward_workspace_bytes(q, k, v, indices.view(), out, lse, options);
  options.workspace = {copies.workspace(bytes), bytes};
  gather_attention_forward(q, k, v, indices.view(), out, lse, options);
  EXPECT_EQ(copies.finish(), "");
}
void backward(GatherProblem& p, GatherOptions options) {
  GpuCopies copies;
  const GpuIndices indices(p.indices);
  const TensorView q = copies.input(p.q), k = copies.input(p.k), v = copies.input(p.v);
  const TensorView dout = copies.input(p.dout), out = copies.input(p.out);
  const TensorView lse = copies.input(p.lse);
  const Gradients gradients{copies.output(p.dq), copies.output(p.dk), copies.output(p.dv),
                            copies.output(p.dsink)};
  options.sink = copies.input(p.sink);
  const int64_t bytes =
      backward_workspace_bytes(dout, q, k, v, out, lse, indices.view(), gradients, options);
  options.workspace = {copies.workspace(bytes), bytes};
  gather_attention_backward(dout, q, k, v, out, lse, indices.view(), gradients, options);
  EXPECT_EQ(copies.finish(), "");
}

// Whether a backend takes a call: sm80 wants aligned rows, at most 256 wide, and no softcap
// backward.
bool takes(const std::string& backend, const std::function<void()>& call) {
  try {
    call();
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unsupported) << error.what();
    EXPECT_NE(backend, "simple") << error.what();
    return false;
  }
}

// Forward, then both kinds of backward pass, by every backend; how many calls there were.
int check(const GatherCase& c, uint64_t seed) {
  GatherProblem p(c, seed);
  const ListAttention want = by_definition(p);
  GatherOptions options = p.options();
  int calls = 0;
  for (const std::string& backend : gpu_backends(Operation::forward, c.dtype)) {
    options.backend = backend;
    if (!takes(backend, [&] { forward(p, options); })) continue;
    EXPECT_EQ(forward_difference(p, want), "") << backend;
    ++calls;
  }
  for (const std::string& backend : gpu_backends(Operation::backward, c.dtype)) {
    for (const bool is_deterministic : {false, true}) {
      options.backend = backend;
      options.deterministic = is_deterministic;
      if (!takes(backend, [&] { backward(p, options); })) continue;
      EXPECT_EQ(backward_difference(p, want), "")
          << backend << (is_deterministic ? ", deterministic" : "");
      ++calls;
    }
  }
  return calls;
}

TEST_F(GpuGather, AgreesWithTheDefinition) {
  int calls = 0;
  for (const GatherCase& each : gather_cases()) {
    for (GatherCase c : in_all_forms(each)) {
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        c.dtype = dtype;
        SCOPED_TRACE(to_text(c));
        calls += check(c, 5);
      }
    }
  }
  std::cout << "index tensors: " << calls << " kernel runs agree\n";
}

// They are data like the entries, and may be wrong like those.
TEST_F(GpuGather, CountsOutOfRangeAreLimited) {
  GatherCase c = gather_cases().front();
  GatherProblem p(c, 5);
  forward(p, p.options());
  const std::vector<uint64_t> all = p.out.bits();
  GpuCopies copies;
  const GpuIndices indices(p.indices);
  const TensorView q = copies.input(p.q), k = copies.input(p.k), v = copies.input(p.v);
  const TensorView out = copies.output(p.out);
  KeyListView lists = indices.view();
  const std::vector<int64_t> counts = {c.entries + 1, std::numeric_limits<int64_t>::max(),
                                       int64_t{1} << 32 | c.entries, c.entries, c.entries};
  GpuMemory memory(kGpu, int64_t(counts.size()) * 8);
  memory.copy_from_host(counts.data(), int64_t(counts.size()) * 8);
  lists.counts = IndexView(static_cast<const int64_t*>(memory.data()), {1, 1, c.q_len, 1});
  lists.counts.device = kGpu;
  attention_forward(q, k, v, lists, out);
  EXPECT_EQ(copies.finish(), "");
  EXPECT_TRUE(p.out.bits() == all);
  const std::vector<int64_t> none = {-1, std::numeric_limits<int64_t>::min(), -5, 0, 0};
  memory.copy_from_host(none.data(), int64_t(none.size()) * 8);
  attention_forward(q, k, v, lists, out);
  EXPECT_EQ(copies.finish(), "");
  for (int64_t i = 0; i < p.out.num_elements(); ++i) EXPECT_EQ(p.out.get(i), 0);
}

// Nothing outside of k and v is read for them: what lies there is NaN.
TEST_F(GpuGather, EntriesThatAreNoKeysAreTreatedAsPadding) {
  for (const bool is_wide : {false, true}) {
    for (const int64_t head_dim : {64, 128}) {
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        const GatherCase c{.name = "hostile",
                           .batch = 2,
                           .heads = 16,
                           .kv_heads = 2,
                           .index_heads = 2,
                           .q_len = 9,
                           .k_len = 100,
                           .entries = 210,
                           .head_dim = head_dim,
                           .v_head_dim = head_dim,
                           .filling = Filling::hostile,
                           .is_wide = is_wide,
                           .dtype = dtype};
        SCOPED_TRACE(to_text(c));
        check(c, 7);
      }
    }
  }
}

// A gradient that is not finite is done again from the pairs alone; a pass that scatters has no
// lists by key, and searches.
TEST_F(GpuGather, ANanReachesThoseWhoAttendToItAndNobodyElse) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int64_t rows_per_list : {1, 3}) {
      const GatherCase c{.name = "NaN",
                         .heads = 16,
                         .kv_heads = 2,
                         .index_heads = 2,
                         .q_len = 12,
                         .k_len = 90,
                         .entries = 40,
                         .head_dim = 64,
                         .v_head_dim = 64,
                         .rows_per_list = rows_per_list,
                         .filling = Filling::gaps,
                         .dtype = dtype};
      SCOPED_TRACE(to_text(c));
      GatherProblem p(c, 9);
      // A query's gradient is NaN: so are its dq, and dk and dv of its keys.
      for (int64_t x = 0; x < c.v_head_dim; ++x)
        p.dout.set((3 * c.q_len + 5) * c.v_head_dim + x, std::nan(""));
      p.dout.seal();
      const ListAttention want = by_definition(p);
      forward(p, p.options());
      EXPECT_EQ(forward_difference(p, want), "");
      for (const bool is_deterministic : {false, true}) {
        GatherOptions options = p.options();
        options.deterministic = is_deterministic;
        backward(p, options);
        EXPECT_EQ(backward_difference(p, want), "") << is_deterministic;
      }
    }
  }
}

// Long enough for many CTAs, and for lists of one key from everywhere.
GatherCase large_case(DType dtype) {
  return {.name = "large",
          .heads = 16,
          .kv_heads = 2,
          .index_heads = 2,
          .q_len = 300,
          .k_len = 500,
          .entries = 200,
          .head_dim = 64,
          .v_head_dim = 64,
          .filling = Filling::gaps,
          .dtype = dtype};
}

TEST_F(GpuGather, TheSameBitsEveryTime) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    GatherProblem p(large_case(dtype), 3);
    GatherOptions options = p.options();
    options.deterministic = true;
    std::vector<uint64_t> first;
    for (int repeat = 0; repeat < 20; ++repeat) {
      forward(p, options);
      backward(p, options);
      const std::vector<uint64_t> all = p.result_bits();
      if (repeat == 0) first = all;
      ASSERT_TRUE(all == first) << to_string(dtype) << ", repeat " << repeat;
    }
  }
}

std::vector<double> numbers_of(const PoisonedTensor& tensor) {
  std::vector<double> numbers;
  for (int64_t i = 0; i < tensor.num_elements(); ++i) numbers.push_back(tensor.get(i));
  return numbers;
}
double relative_difference(const PoisonedTensor& got, const std::vector<double>& want) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(got.get(int64_t(i)) - want[i], 2);
    size += std::pow(want[i], 2);
  }
  return std::sqrt(difference / size);
}

// Spans of keys, and more lists than fit the workspace at a time: against the kernel of any GPU,
// which follows lists by key.
TEST_F(GpuGather, ManySpansInSeveralChunks) {
  for (const int64_t rows_per_list : {1, 2}) {
    const GatherCase c{.name = "spans",
                       .heads = 16,
                       .kv_heads = 2,
                       .index_heads = 2,
                       .q_len = 2200 * rows_per_list,
                       .k_len = 3000,
                       .entries = 1500,
                       .head_dim = 64,
                       .v_head_dim = 128,
                       .rows_per_list = rows_per_list,
                       .filling = Filling::gaps,
                       .dtype = DType::bf16};
    SCOPED_TRACE(to_text(c));
    GatherProblem p(c, 17);
    GatherOptions options = p.options();
    forward(p, options);
    options.deterministic = true;
    options.backend = "simple";
    backward(p, options);
    const std::vector<double> dq = numbers_of(p.dq), dk = numbers_of(p.dk), dv = numbers_of(p.dv);
    options.backend = "sm80";
    {
      GpuCopies copies;
      const GpuIndices indices(p.indices);
      const std::string kernel =
          kernel_for_backward(copies.input(p.q), copies.input(p.v), indices.view(), options);
      EXPECT_NE(kernel.find("key lists by span"), std::string::npos) << kernel;
    }
    std::vector<uint64_t> first;
    for (int repeat = 0; repeat < 5; ++repeat) {
      backward(p, options);
      const std::vector<uint64_t> all = p.result_bits();
      if (repeat == 0) first = all;
      EXPECT_TRUE(all == first) << "repeat " << repeat;
    }
    EXPECT_LT(relative_difference(p.dq, dq), 0.01);
    EXPECT_LT(relative_difference(p.dk, dk), 0.01);
    EXPECT_LT(relative_difference(p.dv, dv), 0.01);
  }
}

// Lists by key that the GPU sorted are those that the host counts out: the same bits as with 64-bit
// or strided entries, which are other numbers in other places to the sort's input.
TEST_F(GpuGather, TheFormOfTheIndicesChangesNoBit) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    std::vector<uint64_t> first;
    for (const GatherCase& form : in_all_forms(large_case(dtype))) {
      GatherProblem p(form, 13);
      GatherOptions options = p.options();
      options.deterministic = true;
      forward(p, options);
      backward(p, options);
      const std::vector<uint64_t> all = p.result_bits();
      if (first.empty()) first = all;
      EXPECT_TRUE(all == first) << to_text(form);
    }
  }
}

// What a graph captured follows the lists of the day: indices are data, and nothing of them is
// kept.
TEST_F(GpuGather, AGraphFollowsOtherIndicesInTheSamePlace) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const GatherCase c = large_case(dtype);
    GatherProblem p(c, 21);
    GpuCopies copies;
    const GpuIndices indices(p.indices);
    const TensorView q = copies.input(p.q), k = copies.input(p.k), v = copies.input(p.v);
    const TensorView dout = copies.input(p.dout);
    const TensorView out = copies.output(p.out), lse = copies.output(p.lse);
    const Gradients gradients{copies.output(p.dq), copies.output(p.dk), copies.output(p.dv), {}};
    const Stream stream;
    GatherOptions options;
    options.stream = stream.get();
    options.deterministic = true;
    const int64_t bytes = std::max(
        forward_workspace_bytes(q, k, v, indices.view(), out, lse, options),
        backward_workspace_bytes(dout, q, k, v, out, lse, indices.view(), gradients, options));
    options.workspace = {copies.workspace(bytes), bytes};
    const auto step = [&] {
      gather_attention_forward(q, k, v, indices.view(), out, lse, options);
      gather_attention_backward(dout, q, k, v, out, lse, indices.view(), gradients, options);
    };
    synchronize(kGpu);
    step();  // code is loaded on first use, which a capture may forbid
    check_cuda(cudaStreamSynchronize(stream.get()), "warming up");
    check_cuda(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), "capturing");
    step();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    check_cuda(cudaStreamEndCapture(stream.get(), &graph), "ending a capture");
    check_cuda(cudaGraphInstantiate(&ready, graph, 0), "making a graph ready");
    for (const uint64_t seed : {31, 32, 33}) {
      p.indices = IndexMemory(c, seed);
      indices.write(p.indices);
      check_cuda(cudaGraphLaunch(ready, stream.get()), "launching a graph");
      EXPECT_EQ(copies.finish(), "");
      const ListAttention want = by_definition(p);
      EXPECT_EQ(forward_difference(p, want), "") << to_string(dtype) << ", seed " << seed;
      EXPECT_EQ(backward_difference(p, want), "") << to_string(dtype) << ", seed " << seed;
    }
    // What has to wait cannot be captured.
    options.check_indices = true;
    check_cuda(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), "capturing");
    EXPECT_EQ(
        message_of([&] { gather_attention_forward(q, k, v, indices.view(), out, lse, options); }),
        "attention: check_indices waits for the GPU, which cannot be done while a CUDA graph is "
        "captured; check the indices before, or leave it out");
    cudaGraph_t empty = nullptr;
    cudaStreamEndCapture(stream.get(), &empty);
    cudaGraphDestroy(empty);
    cudaGraphExecDestroy(ready);
    cudaGraphDestroy(graph);
  }
}

TEST_F(GpuGather, AskedToCheckItNamesTheFirstBadEntry) {
  for (const bool is_wide : {false, true}) {
    GatherProblem p({.name = "bad",
                     .batch = 2,
                     .heads = 4,
                     .kv_heads = 2,
                     .index_heads = 2,
                     .q_len = 5,
                     .k_len = 20,
                     .entries = 6,
                     .is_wide = is_wide,
                     .is_strided = true},
                    4);
    GatherOptions options = p.options();
    options.check_indices = true;
    forward(p, options);  // nothing is wrong yet
    EXPECT_EQ(forward_difference(p, by_definition(p)), "");
    const int64_t value = is_wide ? (int64_t{1} << 32) + 3 : -2;
    p.indices.set(1, 0, 3, 2, value);
    p.indices.set(1, 1, 4, 5, 99);
    const std::string want = "attention: indices[1, 0, 3, 2] is " + std::to_string(value) +
                             "; k has 20 keys: accepted are 0 to 19, and -1 for none";
    EXPECT_EQ(message_of([&] { forward(p, options); }), want);
    EXPECT_EQ(message_of([&] { backward(p, options); }), want);
    options.check_indices = false;
    forward(p, options);
    EXPECT_EQ(forward_difference(p, by_definition(p)), "");
  }
}

// Behind the counts stand entries that are no keys; nobody complains of them.
TEST_F(GpuGather, AskedToCheckItLeavesOutWhatIsNotUsed) {
  for (const GatherCase& c : gather_cases()) {
    if (!c.has_counts) continue;
    GatherProblem p(c, 4);
    GatherOptions options = p.options();
    options.check_indices = true;
    forward(p, options);
    EXPECT_EQ(forward_difference(p, by_definition(p)), "") << to_text(c);
  }
}

TEST_F(GpuGather, IndicesInHostMemoryAreRefused) {
  GatherProblem p({.name = "host", .q_len = 5, .k_len = 20, .entries = 6}, 4);
  GpuCopies copies;
  const TensorView q = copies.input(p.q), k = copies.input(p.k), v = copies.input(p.v);
  const TensorView out = copies.output(p.out);
  EXPECT_EQ(message_of([&] { gather_attention_forward(q, k, v, p.indices.view(), out); }),
            "attention: q is on GPU 0 but indices are in host memory; all tensors of a call must "
            "be in one place");
  EXPECT_EQ(copies.finish(), "");
}

}  // namespace
}  // namespace keyhole::test
