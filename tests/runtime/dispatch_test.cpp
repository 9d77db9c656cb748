// tests/runtime/dispatch_test.cpp
// Which kernel of a table is taken, and what is said of those that are not.
#include "runtime/dispatch.h"

#include <gtest/gtest.h>

#include "keyhole/error.h"
#include "plan/plan_state.h"
#include "runtime/registry.h"
#include "support/per_head.h"

namespace keyhole {
namespace {

using test::per_head_text;

KernelEntry entry(const char* name, DType dtype, std::string (*objection)(const Request&)) {
  KernelEntry kernel{};
  kernel.name = name;
  kernel.backend = "cpu";
  kernel.operation = Operation::forward;
  kernel.dtype = dtype;
  kernel.max_head_dim = 128;
  kernel.objection = objection;
  return kernel;
}

std::string no_softcap(const Request& request) {
  return request.has_softcap ? "has no softcap" : "";
}
std::string no_odd_strides(const Request& request) { return request.why_no_tma; }

const KernelEntry kTable[] = {
    entry("other", DType::f32, no_softcap),       entry("first", DType::bf16, no_softcap),
    entry("second", DType::bf16, no_odd_strides), entry("third", DType::bf16, nullptr),
    entry("last", DType::bf16, no_softcap),
};

Request request(bool has_softcap, const char* why_no_tma = "") {
  return {.backend = "auto",
          .dtype = DType::bf16,
          .head_dim = 64,
          .v_head_dim = 64,
          .has_softcap = has_softcap,
          .why_no_tma = why_no_tma};
}

using Names = std::vector<std::string>;

TEST(Dispatch, TheFirstWithoutAnObjectionRunsAndTheOthersSayWhyNot) {
  EXPECT_EQ(choose(kTable, request(false)).name, "first");
  EXPECT_EQ(passed_over(kTable, request(false)), Names{});
  EXPECT_EQ(choose(kTable, request(true)).name, "second");
  EXPECT_EQ(passed_over(kTable, request(true)), Names{"first: has no softcap"});
  EXPECT_EQ(choose(kTable, request(true, "odd strides")).name, "third");
  EXPECT_EQ(passed_over(kTable, request(true, "odd strides")),
            (Names{"first: has no softcap", "second: odd strides"}));
  // Nothing runs, which is an error.
  Request wide = request(true);
  wide.head_dim = 129;
  EXPECT_EQ(passed_over(kTable, wide), Names{});
  EXPECT_THROW(choose(kTable, wide), Error);
}

std::string error_of(Request request, ErrorKind kind) {
  static const std::vector<KernelEntry> table = [] {
    std::vector<KernelEntry> kernels = {
        entry("fast", DType::bf16, no_softcap), entry("faster", DType::bf16, no_softcap),
        entry("halves", DType::f16, no_softcap), entry("there", DType::bf16, no_softcap)};
    for (KernelEntry& kernel : kernels) kernel.backend = "one";
    kernels[0].max_head_dim = 64;
    kernels[3].device = Device::Kind::cuda;
    kernels[3].backend = "two";
    return kernels;
  }();
  try {
    choose(table, request);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return "no error";
}

TEST(Dispatch, WhenNothingRunsEachBackendSaysWhyNotOnce) {
  Request wanted = request(true);
  EXPECT_EQ(error_of(wanted, ErrorKind::unsupported),
            "no kernel for attention forward, bf16, head_dim 64, softcap, on auto\n"
            "  one: has no softcap\n"
            "  two: reads the memory of a GPU");
  wanted.head_dim = wanted.v_head_dim = 96;
  wanted.backend = "one";
  EXPECT_EQ(error_of(wanted, ErrorKind::unsupported),
            "no kernel for attention forward, bf16, head_dim 96, softcap, on one\n"
            "  one: has head_dim up to 64, has no softcap");
  wanted.dtype = DType::f64;
  EXPECT_EQ(error_of(wanted, ErrorKind::unsupported),
            "no kernel for attention forward, f64, head_dim 96, softcap, on one\n"
            "  one: reads bf16, reads f16");
  wanted.operation = Operation::backward;
  EXPECT_EQ(error_of(wanted, ErrorKind::unsupported),
            "no kernel for attention backward, f64, head_dim 96, softcap, on one\n"
            "  one: has no backward");
  wanted.backend = "gpu";
  EXPECT_EQ(error_of(wanted, ErrorKind::usage),
            "attention: backend is \"gpu\"; accepted are auto, one, two");
}

TEST(Dispatch, KernelsOfSoftmaxNeverRunEntmax) {
  Request wanted = request(false);
  wanted.normalizer = entmax(1.5, 8);
  EXPECT_EQ(error_of(wanted, ErrorKind::unsupported),
            "no kernel for attention forward, bf16, head_dim 64, entmax(1.5, top=8), on auto\n"
            "  one: softmax only\n"
            "  two: reads the memory of a GPU");
  KernelEntry sparse = entry("sparse", DType::bf16, nullptr);
  sparse.weights = Weights::sparse;
  const KernelEntry table[] = {kTable[3], sparse};
  EXPECT_EQ(choose(table, wanted).name, "sparse");
  EXPECT_EQ(choose(table, request(false)).name, "third");
  EXPECT_EQ(refusal(sparse, request(false)), "is for entmax and top_k");
  KernelEntry gpu = kTable[3];
  gpu.device = wanted.device.kind = Device::Kind::cuda;
  EXPECT_EQ(refusal(gpu, wanted), "softmax only");
}

TEST(Dispatch, StridesThatTmaCannotFollowAreFoundInAnyTensor) {
  const TensorView plain(nullptr, DType::bf16, {1, 2, 5, 8}), missing;
  const TensorView repeated(nullptr, DType::bf16, {1, 2, 5, 8}, {80, 0, 8, 1});
  EXPECT_EQ(why_no_tma({&plain, &missing, &plain}), "");
  EXPECT_EQ(why_no_tma({&plain, &missing, &repeated}),
            "reads tensors whose strides are positive, not 0 for heads");
}

// What `keyhole info` says of them.
TEST(Dispatch, KernelsNameWhatTheyDoNotTake) {
  EXPECT_EQ(objections_of(kTable[1]), Names{"has no softcap"});
  EXPECT_EQ(objections_of(kTable[2]),
            Names{"reads tensors whose strides are positive, not 0 for heads"});
  EXPECT_EQ(objections_of(kTable[3]), Names{});
  for (const KernelEntry& kernel : kernel_table()) {
    if (kernel.device == Device::Kind::cpu) {
      EXPECT_EQ(objections_of(kernel), Names{}) << kernel.name;
    }
  }
}

// What a plan tells of its lists, for the heads of a call.
TEST(Dispatch, KnowsTheSizesOfThePlansKeyLists) {
  const auto sizes_of = [](const std::string& pattern, int64_t heads, int64_t kv_heads) {
    const Plan made = make_plan(parse(pattern), {1, heads, 30, 40}, SplitPolicy::gather);
    const TensorView q(nullptr, DType::bf16, {1, heads, 30, 64});
    const TensorView k(nullptr, DType::bf16, {1, kv_heads, 40, 64});
    return key_list_sizes(q, k, made);
  };
  const KeyListSizes even = sizes_of("random(1, 12, 3)", 16, 2);
  EXPECT_EQ(even.rows, 8);
  EXPECT_EQ(even.room, 12);
  EXPECT_EQ(even.keys, 12);
  EXPECT_EQ(even.k_len, 40);
  const KeyListSizes uneven = sizes_of("causal", 1, 1);  // 11 to 40 keys
  EXPECT_EQ(uneven.rows, 1);
  EXPECT_EQ(uneven.room, 40);
  EXPECT_EQ(uneven.keys, 25);
  // Neighbouring heads alike: all four of a kv head, two of six, none.
  EXPECT_EQ(sizes_of(per_head_text({{4, "window(3)"}, {4, "causal"}}), 8, 2).rows, 4);
  EXPECT_EQ(sizes_of(per_head_text({{2, "causal"}, {2, "window(3)"}, {2, "causal"}}), 6, 1).rows,
            2);
  EXPECT_EQ(sizes_of(per_head_text({{1, "causal"}, {3, "window(3)"}}), 4, 1).rows, 1);
  // Tiles have none.
  const TensorView q(nullptr, DType::bf16, {1, 16, 30, 64}),
      k(nullptr, DType::bf16, {1, 1, 40, 64});
  const Plan tiles = make_plan(parse("causal"), {1, 16, 30, 40}, SplitPolicy::plain);
  EXPECT_EQ(key_list_sizes(q, k, tiles).rows, 0);
}

}  // namespace
}  // namespace keyhole
