// tests/select/table_test.cpp
// Walks the table of kernels that select keys: each is what it says, each is reachable by its
// dtype, and requests that nobody serves are refused with all objections.
#include <gtest/gtest.h>

#include <set>

#include "runtime/gpu.h"
#include "runtime/select_registry.h"
#include "select/requests.h"
#include "support/message_of.h"
#include "support/scale.h"
#include "support/select_checks.h"

namespace keyhole::test {
namespace {

TEST(SelectTable, EveryKernelIsWhatItsNameSays) {
  std::set<std::string> names;
  for (const SelectKernel& kernel : select_table()) {
    EXPECT_TRUE(names.insert(kernel.name).second) << kernel.name << " is listed twice";
    const std::string begin =
        kernel.backend + "." + to_string(kernel.operation) + "." + to_string(kernel.dtype);
    EXPECT_TRUE(kernel.name.starts_with(begin)) << kernel.name;
    const auto is = [&](SelectOperation operation) { return kernel.operation == operation; };
    EXPECT_EQ(kernel.scores != nullptr, is(SelectOperation::scores)) << kernel.name;
    EXPECT_EQ(kernel.top_k != nullptr, is(SelectOperation::top_k)) << kernel.name;
    EXPECT_EQ(kernel.select != nullptr, is(SelectOperation::select)) << kernel.name;
    EXPECT_EQ(kernel.loss != nullptr, is(SelectOperation::loss)) << kernel.name;
    EXPECT_EQ(kernel.gradients != nullptr, is(SelectOperation::gradients)) << kernel.name;
  }
}

bool is_here(const SelectKernel& kernel) {
  return kernel.device == Device::Kind::cpu || !gpus().empty();
}

// Empty, too, if the kernel does not take the case.
std::string check(const SelectKernel& kernel, const auto& c) {
  if (!judge::refusal_of(kernel, c).empty()) return "";
  return judge::run_and_judge(kernel, c).complaint;
}

// Each kernel of this machine, also those that dispatch would pass over.
TEST(SelectTable, EveryKernelAgreesWithTheDefinition) {
  for (const SelectKernel& kernel : select_table()) {
    if (!is_here(kernel)) continue;
    SCOPED_TRACE(kernel.name);
    const Device device{kernel.device, 0};
    if (kernel.operation == SelectOperation::loss ||
        kernel.operation == SelectOperation::gradients) {
      const LossCase c{.groups = 2,
                       .target_heads = 4,
                       .kv_heads = 2,
                       .q_len = 20,
                       .entries = 20,
                       .dtype = kernel.dtype,
                       .target_dtype = kernel.dtype == DType::e4m3 ? DType::f16 : kernel.dtype,
                       .device = device};
      EXPECT_EQ(check(kernel, c), "") << to_text(c);
      LossCase wide = c;  // what tensor cores take
      wide.heads = 33, wide.head_dim = 64, wide.target_heads = 40, wide.target_dim = 72;
      wide.kv_heads = 2, wide.entries = 300, wide.offset = 280;
      for (const int64_t selected : {0, 50}) {
        wide.selected = selected;
        EXPECT_EQ(check(kernel, wide), "") << to_text(wide);
      }
      continue;
    }
    Sample sample;
    for (const int64_t heads : {1, 3, 33, 64}) {
      for (const int64_t head_dim : {1, 20, 64, 128, 130}) {
        if (!sample.takes_next()) continue;
        const SelectCase c{.groups = 2,
                           .heads = heads,
                           .q_len = 17,
                           .entries = 100,
                           .head_dim = head_dim,
                           .k = 9,
                           .dtype = kernel.dtype,
                           .has_scale = heads == 3,
                           .visible = pattern_or_none(head_dim == 64 ? "" : "causal"),
                           .layout = Layout::bshd,
                           .device = device};
        EXPECT_EQ(check(kernel, c), "") << to_text(c);
      }
    }
  }
}

TEST(SelectTable, TheFirstWithoutAnObjectionRuns) {
  SelectKernel picky{.name = "a.top_k.f32",
                     .backend = "a",
                     .operation = SelectOperation::top_k,
                     .dtype = DType::f32};
  picky.objection = [](const SelectRequest& request) {
    return request.k > 8 ? std::string("has k up to 8") : std::string();
  };
  SelectKernel plain = picky;
  plain.name = "b.top_k.f32", plain.backend = "b", plain.objection = nullptr;
  const std::vector<SelectKernel> table = {picky, plain};
  SelectRequest request{.backend = "auto", .operation = SelectOperation::top_k, .k = 8};
  EXPECT_EQ(choose_select(table, request).name, "a.top_k.f32");
  request.k = 9;
  EXPECT_EQ(choose_select(table, request).name, "b.top_k.f32");
  request.backend = "a";
  EXPECT_EQ(message_of([&] { choose_select(table, request); }),
            "no kernel for top_k, f32, k 9, on a\n  a: has k up to 8");
  request.backend = "c";
  EXPECT_EQ(message_of([&] { choose_select(table, request); }),
            "selection: backend is \"c\"; accepted are auto, a, b");
}

// A build without kernels for GPUs says so, whether or not it knows the GPU.
TEST(SelectTable, TensorsOfAGpuWithoutAKernelAreRefused) {
  for (const SelectKernel& kernel : select_table()) {
    if (kernel.device == Device::Kind::cuda) GTEST_SKIP() << "this build has " << kernel.name;
  }
  const SelectCase c{.dtype = DType::bf16};
  SelectProblem p(c);
  IndexerView indexer{p.q.view(), p.k.view(), {}, {}};
  indexer.q.device = indexer.k.device = {Device::Kind::cuda, 0};
  try {
    kernel_for_selection(indexer, {.k = 4});
    FAIL() << "it was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unsupported);
    EXPECT_EQ(std::string(error.what()),
              "no kernel for index_scores, bf16, 2 index heads of 8, k 4, GPU 0, on auto\n"
              "  cpu: reads host memory\n"
              "  the way out: copy the tensors to host memory");
  }
}

}  // namespace
}  // namespace keyhole::test
