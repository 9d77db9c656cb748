// tests/api/bad_input_test.cpp
// Bad arguments to the public functions: each row spoils one thing in a sound call and names the
// exact error. After every refusal no output byte has changed, and the sound call still works.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <iostream>
#include <limits>

#include "base/check.h"
#include "keyhole/attention.h"
#include "keyhole/error.h"
#include "runtime/registry.h"

namespace keyhole {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kHuge = int64_t{1} << 62;

// A sound call: batch 2, 4 heads over 2, 5 queries, 7 keys, head_dim 8, v_head_dim 6.
struct Call {
  std::vector<float> memory[11];
  TensorView q, k, v, out, lse, dout, other_lse;
  Gradients gradients;
  AttentionOptions options;
  Plan made = plan(causal(), Shape{2, 4, 5, 7, {}});

  Call() {
    int next = 0;
    const auto tensor = [&](std::initializer_list<int64_t> shape) {
      TensorView view(nullptr, DType::f32, shape);
      memory[next].assign(size_t(view.num_elements()) * 4 + 16, 1.f);
      view.data = memory[next++].data();
      return view;
    };
    q = tensor({2, 4, 5, 8}), k = tensor({2, 2, 7, 8}), v = tensor({2, 2, 7, 6});
    out = tensor({2, 4, 5, 6}), lse = tensor({2, 4, 5}), dout = tensor({2, 4, 5, 6});
    gradients.dq = tensor({2, 4, 5, 8}), gradients.dk = tensor({2, 2, 7, 8});
    gradients.dv = tensor({2, 2, 7, 6});
    options.sink = tensor({4}), other_lse = tensor({2, 4, 5});
  }
  void forward() const { attention_forward(q, k, v, made, out, lse, options); }
  void backward() const { attention_backward(dout, q, k, v, out, lse, made, gradients, options); }
};

struct Row {
  const char* name;
  std::function<void(Call&)> spoil;
  const char* error;
};

std::string error_of(const std::function<void()>& call, ErrorKind* kind = nullptr) {
  try {
    call();
    return "";
  } catch (const Error& error) {
    if (kind) *kind = error.kind();
    return error.what();
  }
}

TensorView reshaped(const TensorView& tensor, std::initializer_list<int64_t> shape) {
  return TensorView(tensor.data, tensor.dtype, shape);
}

const std::vector<Row> kForwardRows = {
    {"null q", [](Call& c) { c.q.data = nullptr; },
     "attention: q has shape [2, 4, 5, 8] but its data pointer is null"},
    {"null k", [](Call& c) { c.k.data = nullptr; },
     "attention: k has shape [2, 2, 7, 8] but its data pointer is null"},
    {"null v", [](Call& c) { c.v.data = nullptr; },
     "attention: v has shape [2, 2, 7, 6] but its data pointer is null"},
    {"null out", [](Call& c) { c.out.data = nullptr; },
     "attention: out has shape [2, 4, 5, 6] but its data pointer is null"},
    {"null lse", [](Call& c) { c.lse.data = nullptr; },
     "attention: lse has shape [2, 4, 5] but its data pointer is null"},
    {"q not given", [](Call& c) { c.q = {}; },
     "attention: q has 0 dimensions; expected 4: [batch, heads, length, head_dim]"},
    {"q of rank 3", [](Call& c) { c.q = reshaped(c.q, {4, 5, 8}); },
     "attention: q has 3 dimensions; expected 4: [batch, heads, length, head_dim]"},
    {"k of rank 2", [](Call& c) { c.k = reshaped(c.k, {7, 8}); },
     "attention: k has 2 dimensions; expected 4: [batch, heads, length, head_dim]"},
    {"v of rank 1", [](Call& c) { c.v = reshaped(c.v, {7}); },
     "attention: v has 1 dimensions; expected 4: [batch, heads, length, head_dim]"},
    {"out of rank 3", [](Call& c) { c.out = reshaped(c.out, {8, 5, 6}); },
     "attention: out has 3 dimensions; expected 4: [batch, heads, length, head_dim]"},
    {"lse of rank 4", [](Call& c) { c.lse = reshaped(c.lse, {2, 4, 5, 1}); },
     "attention: lse has 4 dimensions; expected 3: [batch, heads, length]"},
    {"sink of rank 2", [](Call& c) { c.options.sink = reshaped(c.options.sink, {2, 2}); },
     "attention: sink has 2 dimensions; expected 1: [q_heads]"},
    {"negative length", [](Call& c) { c.q.shape[2] = -5; },
     "attention: q has shape [2, 4, -5, 8]; sizes must not be negative"},
    {"negative batch", [](Call& c) { c.k.shape[0] = INT64_MIN; },
     "attention: k has shape [-9223372036854775808, 2, 7, 8]; sizes must not be negative"},
    {"product of sizes",
     [](Call& c) {
       c.q.shape[0] = kHuge;
       c.q.shape[1] = 16;
     },
     "tensor size: 4611686018427387904 x 16 does not fit 64 bits"},
    {"stride times size",
     [](Call& c) {
       c.q.strides[0] = INT64_MAX;
       c.q.shape[0] = 3;
     },
     "q: 2 x 9223372036854775807 does not fit 64 bits"},
    {"dtype of k", [](Call& c) { c.k.dtype = DType::f16; },
     "attention: q is f32 but k is f16; they must be equal"},
    {"dtype of v", [](Call& c) { c.v.dtype = DType::bf16; },
     "attention: q is f32 but v is bf16; they must be equal"},
    {"dtype of out", [](Call& c) { c.out.dtype = DType::f16; },
     "attention: q is f32 but out is f16; they must be equal"},
    {"dtype of lse", [](Call& c) { c.lse.dtype = DType::f16; },
     "attention: lse is f16; it must be f32 for f32 inputs"},
    {"dtype of sink", [](Call& c) { c.options.sink.dtype = DType::f16; },
     "attention: sink is f16; it must be f32"},
    {"head_dim of k", [](Call& c) { c.k = reshaped(c.k, {2, 2, 7, 7}); },
     "attention: q has head_dim 8 but k has 7; they must be equal"},
    {"head_dim 0",
     [](Call& c) {
       c.q = reshaped(c.q, {2, 4, 5, 0});
       c.k = reshaped(c.k, {2, 2, 7, 0});
     },
     "attention: q has head_dim 0; accepted are 1 to 576"},
    {"head_dim above 576",
     [](Call& c) {
       c.q = TensorView(c.q.data, DType::f32, {2, 4, 5, 577}, {0, 0, 0, 1});
       c.k = TensorView(c.k.data, DType::f32, {2, 2, 7, 577}, {0, 0, 0, 1});
     },
     "attention: q has head_dim 577; accepted are 1 to 576"},
    {"v_head_dim above 576",
     [](Call& c) { c.v = TensorView(c.v.data, DType::f32, {2, 2, 7, 1000}, {0, 0, 0, 1}); },
     "attention: v has head_dim 1000; accepted are 1 to 576"},
    {"batch of k", [](Call& c) { c.k.shape[0] = 1; },
     "attention: q, k and v have batch 2, 1 and 2; they must be equal"},
    {"heads of v", [](Call& c) { c.v = reshaped(c.v, {2, 1, 7, 6}); },
     "attention: k has 2 heads and v has 1; they must be equal"},
    {"heads do not divide", [](Call& c) { c.q = reshaped(c.q, {2, 3, 5, 8}); },
     "attention: q has 3 heads and k has 2; the heads of q must be a multiple of those of k"},
    {"no kv heads", [](Call& c) { c.k.shape[1] = c.v.shape[1] = 0; },
     "attention: q has 4 heads and k has 0; the heads of q must be a multiple of those of k"},
    {"length of v", [](Call& c) { c.v.shape[2] = 6; },
     "attention: k has length 7 and v has 6; they must be equal"},
    {"plan of other lengths", [](Call& c) { c.made = plan(causal(), Shape{2, 4, 5, 8, {}}); },
     "attention: the plan was made for 5 queries and 8 keys but got 5 and 7; make it again for "
     "these: plan(pattern, 5, 7)"},
    {"plan of other heads", [](Call& c) { c.made = plan(causal(), Shape{2, 2, 5, 7, {}}); },
     "attention: the plan was made for batch 2 and 2 heads but q has batch 2 and 4 heads; make it "
     "again for these, or for batch 1 and one head, which serves all"},
    {"out of another length", [](Call& c) { c.out.shape[2] = 4; },
     "attention: out has shape [2, 4, 4, 6]; expected [2, 4, 5, 6], batch, heads and length of q "
     "and "
     "head_dim of v"},
    {"out with the head_dim of q", [](Call& c) { c.out = reshaped(c.out, {2, 4, 5, 8}); },
     "attention: out has shape [2, 4, 5, 8]; expected [2, 4, 5, 6], batch, heads and length of q "
     "and "
     "head_dim of v"},
    {"lse of another shape", [](Call& c) { c.lse = reshaped(c.lse, {2, 5, 4}); },
     "attention: lse has shape [2, 5, 4]; expected [2, 4, 5], batch, heads and length of q"},
    {"sink of another size", [](Call& c) { c.options.sink = reshaped(c.options.sink, {2}); },
     "attention: sink has shape [2]; expected [4], one logit per head of q"},
    {"last stride of q", [](Call& c) { c.q.strides[3] = 2; },
     "attention: q has stride 2 in its last dimension; it must be contiguous there (stride 1), "
     "copy it "
     "first"},
    {"last stride of v", [](Call& c) { c.v.strides[3] = 0; },
     "attention: v has stride 0 in its last dimension; it must be contiguous there (stride 1), "
     "copy it "
     "first"},
    {"negative stride", [](Call& c) { c.k.strides[2] = -8; },
     "attention: k has stride -8 in dimension 2; negative strides are not supported, copy it "
     "first"},
    {"stride 0 on an output", [](Call& c) { c.out.strides[1] = 0; },
     "attention: out is written but its elements overlap: stride 0 in dimension 1 is smaller than "
     "the span of the dimensions inside it; pass memory of its own"},
    {"overlapping output", [](Call& c) { c.out.strides[2] = 5; },
     "attention: out is written but its elements overlap: stride 5 in dimension 2 is smaller than "
     "the span of the dimensions inside it; pass memory of its own"},
    {"overlapping lse", [](Call& c) { c.lse.strides[1] = 1; },
     "attention: lse is written but its elements overlap: stride 1 in dimension 2 is smaller than "
     "the span of the dimensions inside it; pass memory of its own"},
    {"out is q", [](Call& c) { c.out.data = c.q.data; },
     "attention: out overlaps q in memory; outputs need memory of their own"},
    {"out partly over k", [](Call& c) { c.out.data = static_cast<float*>(c.k.data) + 3; },
     "attention: out overlaps k in memory; outputs need memory of their own"},
    {"lse is out", [](Call& c) { c.lse.data = c.out.data; },
     "attention: out overlaps lse in memory; outputs need memory of their own"},
    {"lse over v", [](Call& c) { c.lse.data = c.v.data; },
     "attention: lse overlaps v in memory; outputs need memory of their own"},
    {"misaligned q", [](Call& c) { c.q.data = reinterpret_cast<char*>(c.q.data) + 1; },
     "attention: q is not aligned to its element size of 4 bytes"},
    {"alpha below 1", [](Call& c) { c.options.normalizer.alpha = 0.5; },
     "attention: alpha is 0.5; accepted are 1 (softmax) to 2 (sparsemax)"},
    {"alpha above 2", [](Call& c) { c.options.normalizer.alpha = 2.25; },
     "attention: alpha is 2.25; accepted are 1 (softmax) to 2 (sparsemax)"},
    {"alpha is NaN", [](Call& c) { c.options.normalizer.alpha = kNan; },
     "attention: alpha is nan; accepted are 1 (softmax) to 2 (sparsemax)"},
    {"negative top_k", [](Call& c) { c.options.normalizer.top_k = -1; },
     "attention: top_k is -1; it must be positive, or 0 for all keys"},
    {"support for softmax",
     [](Call& c) {
       static int32_t keys[2 * 4 * 5 * 64];
       c.options.support = IndexView(keys, {2, 4, 5, 64});
     },
     "attention: support is given, but the normalizer is softmax, which gives every key weight; "
     "leave support out, or pass entmax(alpha) or top_k"},
    {"shape of support",
     [](Call& c) {
       static int32_t keys[2 * 4 * 5 * 8];
       c.options.normalizer = entmax(1.5);
       c.options.support = IndexView(keys, {2, 4, 5, 8});
     },
     "attention: support is int32 [2, 4, 5, 8]; expected int32 [2, 4, 5, 64], batch, heads and "
     "length of q"},
    {"dtype of support",
     [](Call& c) {
       static int64_t keys[2 * 4 * 5 * 64];
       c.options.normalizer = softmax(3);
       c.options.support = IndexView(keys, {2, 4, 5, 64});
     },
     "attention: support is int64 [2, 4, 5, 64]; expected int32 [2, 4, 5, 64], batch, heads and "
     "length of q"},
    {"support not given memory",
     [](Call& c) {
       c.options.normalizer = entmax(1.5);
       c.options.support = IndexView(static_cast<int32_t*>(nullptr), {2, 4, 5, 64});
     },
     "attention: support are int32 [2, 4, 5, 64] but their data pointer is null"},
    {"support whose rows overlap",
     [](Call& c) {
       static int32_t keys[2 * 4 * 5 * 64];
       c.options.normalizer = entmax(1.5);
       c.options.support = IndexView(keys, {2, 4, 5, 64});
       c.options.support.strides[2] = 0;
     },
     "attention: support is written but its elements overlap: stride 0 in dimension 2 is smaller "
     "than the span of the dimensions inside it; pass memory of its own"},
    {"support on top of out",
     [](Call& c) {
       static int32_t keys[2 * 4 * 5 * 64];
       c.options.normalizer = entmax(1.5);
       c.options.support = IndexView(keys, {2, 4, 5, 64});
       c.out.data = keys + 1000;
     },
     "attention: support overlaps out in memory; outputs need memory of their own"},
    {"scale is NaN", [](Call& c) { c.options.scale = kNan; },
     "attention: scale is nan; it must be a finite number, or left out for head_dim ** -0.5"},
    {"scale is infinite", [](Call& c) { c.options.scale = INFINITY; },
     "attention: scale is inf; it must be a finite number, or left out for head_dim ** -0.5"},
    {"negative softcap", [](Call& c) { c.options.softcap = -1; },
     "attention: softcap is -1; it must be a positive number, or 0 for none"},
    {"softcap is NaN", [](Call& c) { c.options.softcap = kNan; },
     "attention: softcap is nan; it must be a positive number, or 0 for none"},
    {"negative threads", [](Call& c) { c.options.threads = -2; },
     "attention: threads is -2; it must be positive, or 0 for all the machine has"},
#ifndef KEYHOLE_HAVE_CUDA  // tests/gpu has what is said where there are kernels
    {"q on a GPU", [](Call& c) { c.q.device.kind = Device::Kind::cuda; },
     "no GPU: no CUDA in this build; build Keyhole with -DKEYHOLE_CUDA=ON, or pass tensors in host "
     "memory"},
#endif
};

const std::vector<Row> kBackwardRows = {
    {"dout of another shape", [](Call& c) { c.dout = reshaped(c.dout, {2, 4, 5, 8}); },
     "attention: dout has shape [2, 4, 5, 8]; expected [2, 4, 5, 6], batch, heads and length of q "
     "and "
     "head_dim of v"},
    {"dtype of dout", [](Call& c) { c.dout.dtype = DType::bf16; },
     "attention: q is f32 but dout is bf16; they must be equal"},
    {"lse not given", [](Call& c) { c.lse = {}; },
     "attention: lse has 0 dimensions; expected 3: [batch, heads, length]"},
    {"out not given", [](Call& c) { c.out = {}; },
     "attention: out has 0 dimensions; expected 4: [batch, heads, length, head_dim]"},
    {"dq not given", [](Call& c) { c.gradients.dq = {}; },
     "attention: dq has 0 dimensions; expected 4: [batch, heads, length, head_dim]"},
    {"null dk", [](Call& c) { c.gradients.dk.data = nullptr; },
     "attention: dk has shape [2, 2, 7, 8] but its data pointer is null"},
    {"dk with the heads of q", [](Call& c) { c.gradients.dk = reshaped(c.q, {2, 4, 5, 8}); },
     "attention: dk has shape [2, 4, 5, 8]; expected [2, 2, 7, 8], the shape of k"},
    {"dv with the head_dim of k",
     [](Call& c) { c.gradients.dv = reshaped(c.gradients.dk, {2, 2, 7, 8}); },
     "attention: dv has shape [2, 2, 7, 8]; expected [2, 2, 7, 6], the shape of v"},
    {"dtype of dv", [](Call& c) { c.gradients.dv.dtype = DType::f64; },
     "attention: q is f32 but dv is f64; they must be equal"},
    {"stride 0 on dk", [](Call& c) { c.gradients.dk.strides[1] = 0; },
     "attention: dk is written but its elements overlap: stride 0 in dimension 1 is smaller than "
     "the span of the dimensions inside it; pass memory of its own"},
    {"dq is q", [](Call& c) { c.gradients.dq.data = c.q.data; },
     "attention: dq overlaps q in memory; outputs need memory of their own"},
    {"dv over dk", [](Call& c) { c.gradients.dv.data = c.gradients.dk.data; },
     "attention: dv overlaps dk in memory; outputs need memory of their own"},
    {"dsink without a sink",
     [](Call& c) {
       c.gradients.dsink = c.options.sink;
       c.options.sink = {};
     },
     "attention: dsink is asked for but options.sink is not given"},
    {"dsink of another size",
     [](Call& c) { c.gradients.dsink = TensorView(c.memory[9].data() + 8, DType::f32, {3}); },
     "attention: dsink has shape [3]; expected [4], one gradient per head of q"},
    {"dtype of dsink",
     [](Call& c) { c.gradients.dsink = TensorView(c.memory[9].data() + 8, DType::f64, {4}); },
     "attention: dsink is f64; it must be f32"},
    {"plan of other lengths", [](Call& c) { c.made = plan(causal(), 7, 7); },
     "attention: the plan was made for 7 queries and 7 keys but got 5 and 7; make it again for "
     "these: plan(pattern, 5, 7)"},
};

const std::vector<Row> kMergeRows = {
    {"shapes differ", [](Call& c) { c.dout = reshaped(c.dout, {2, 4, 6, 5}); },
     "attention: the other out has shape [2, 4, 6, 5]; expected [2, 4, 5, 6], the shape of out"},
    {"dtypes differ", [](Call& c) { c.dout.dtype = DType::f16; },
     "attention: out is f32 but the other out is f16; they must be equal"},
    {"null other out", [](Call& c) { c.dout.data = nullptr; },
     "attention: the other out has shape [2, 4, 5, 6] but its data pointer is null"},
    {"lse of another shape", [](Call& c) { c.lse = reshaped(c.lse, {2, 4, 4}); },
     "attention: lse has shape [2, 4, 4]; expected [2, 4, 5], batch, heads and length of out"},
    {"other lse of another shape", [](Call& c) { c.other_lse = reshaped(c.lse, {2, 4, 4}); },
     "attention: the other lse has shape [2, 4, 4]; expected [2, 4, 5], batch, heads and length of "
     "out"},
    {"other lse of another dtype", [](Call& c) { c.other_lse.dtype = DType::f16; },
     "attention: the other lse is f16; it must be f32 for f32 inputs"},
};

void check_rows(const char* what, const std::vector<Row>& rows,
                const std::function<void(const Call&)>& run) {
  for (const Row& row : rows) {
    Call call;
    EXPECT_EQ(error_of([&] { run(call); }), "") << what << ": the sound call fails";
    row.spoil(call);
    std::vector<std::vector<float>> before(std::begin(call.memory), std::end(call.memory));
    ErrorKind kind = ErrorKind::internal;
    EXPECT_EQ(error_of([&] { run(call); }, &kind), row.error) << what << ": " << row.name;
    EXPECT_EQ(kind, ErrorKind::usage) << what << ": " << row.name;
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_EQ(before[i], call.memory[i])
          << what << ": " << row.name << " wrote before it refused";
    }
    Call again;
    EXPECT_EQ(error_of([&] { run(again); }), "")
        << what << ": the sound call fails after " << row.name;
  }
  std::cout << rows.size() << " bad inputs to " << what << "\n";
}

TEST(BadInput, Forward) {
  check_rows("attention_forward", kForwardRows, [](const Call& c) { c.forward(); });
}

TEST(BadInput, Backward) {
  check_rows("attention_backward", kBackwardRows, [](const Call& c) { c.backward(); });
}

// Whoever asks how large a workspace a call needs is told what is wrong with the call.
TEST(BadInput, QuestionsForAWorkspace) {
  check_rows("forward_workspace_bytes", kForwardRows, [](const Call& c) {
    forward_workspace_bytes(c.q, c.k, c.v, c.made, c.out, c.lse, c.options);
  });
  check_rows("backward_workspace_bytes", kBackwardRows, [](const Call& c) {
    backward_workspace_bytes(c.dout, c.q, c.k, c.v, c.out, c.lse, c.made, c.gradients, c.options);
  });
}

TEST(BadInput, QuestionsForAKernel) {
  const Call call;
  const std::string plain = "cpu.forward.f32, tiles ";
  EXPECT_EQ(kernel_for_forward(call.q, call.v, call.made, call.options).find(plain), 0u);
  EXPECT_EQ(
      error_of([&] { kernel_for_forward(call.q, call.v, plan(causal(), 5, 8)); }),
      "attention: the plan was made for 5 queries and 8 keys but got 5 and 7; make it again for "
      "these: plan(pattern, 5, 7)");
  EXPECT_EQ(
      error_of([&] { kernel_for_backward(call.q, call.v, plan(causal(), Shape{3, 4, 5, 7, {}})); }),
      "attention: the plan was made for batch 3 and 4 heads but q has batch 2 and 4 heads; make "
      "it again for these, or for batch 1 and one head, which serves all");
  TensorView no_heads = call.v;
  no_heads.shape[1] = 0;
  EXPECT_EQ(
      error_of([&] { kernel_for_forward(call.q, no_heads, call.made); }),
      "attention: q has 4 heads and v has 0; the heads of q must be a multiple of those of v");
}

TEST(BadInput, Merge) {
  check_rows("merge", kMergeRows, [](const Call& c) { merge(c.out, c.lse, c.dout, c.other_lse); });
}

TEST(BadInput, ABackendThatIsNotThereOrOfTheOtherSide) {
  Call call;
  ErrorKind kind = ErrorKind::internal;
  call.options.backend = "sm91";
  const std::string text = error_of([&] { call.forward(); }, &kind);
  EXPECT_EQ(text.find("attention: backend is \"sm91\"; accepted are auto, "), 0u) << text;
  EXPECT_EQ(kind, ErrorKind::usage);
  for (const std::string& backend : backends_of(kernel_table())) {
    if (backend == "cpu") continue;
    call.options.backend = backend;
    EXPECT_EQ(error_of([&] { call.forward(); }, &kind),
              say("no kernel for attention forward, f32, head_dim 8 (v 6), on ", backend, "\n  ",
                  backend, ": reads the memory of a GPU"));
    EXPECT_EQ(kind, ErrorKind::unsupported);
  }
}

TEST(BadInput, WhatIsOddButSoundIsTaken) {
  Call null;  // a null tensor without elements
  null.q = TensorView(nullptr, DType::f32, {2, 4, 0, 8}),
  null.out = TensorView(nullptr, DType::f32, {2, 4, 0, 6});
  null.lse = TensorView(nullptr, DType::f32, {2, 4, 0}),
  null.made = plan(causal(), Shape{2, 4, 0, 7, {}});
  EXPECT_EQ(error_of([&] { null.forward(); }), "");

  null.out.strides[0] = null.out.strides[3] = null.lse.strides[0] = 0;  // whatever its strides are
  EXPECT_EQ(error_of([&] { null.forward(); }), "");

  Call expanded;  // stride 0 on inputs
  expanded.k.strides[1] = expanded.q.strides[0] = 0;
  EXPECT_EQ(error_of([&] { expanded.forward(); }), "");

  Call one;  // one plan for every head and batch entry
  one.made = plan(causal(), 5, 7);
  EXPECT_EQ(error_of([&] { one.forward(); }), "");
  EXPECT_EQ(error_of([&] { one.backward(); }), "");

  Call without;  // no lse wanted, no sink
  without.lse = {}, without.options.sink = {};
  EXPECT_EQ(error_of([&] { without.forward(); }), "");

  for (const double scale : {0.0, -2.0}) {
    Call call;
    call.options.scale = scale;
    EXPECT_EQ(error_of([&] { call.forward(); }), "");
  }
}

}  // namespace
}  // namespace keyhole
