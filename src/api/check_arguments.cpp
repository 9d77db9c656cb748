// src/api/check_arguments.cpp
#include "api/check_arguments.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/dtype.h"
#include "base/int_math.h"
#include "runtime/gpu.h"

namespace keyhole {
namespace {

constexpr int64_t kMaxHeadDim = 576;

constexpr const char* kWho = "attention";

void check_dtype(const TensorView& q, const char* name) {
  KEYHOLE_CHECK(q.dtype != DType::e4m3, "attention: ", name,
                " is e4m3; accepted are f32, bf16, f16 and f64. e4m3 is for the indexer of "
                "select_keys; convert q, k and v first");
}

struct InputExtents {
  Extent q, k, v, sink;
};
InputExtents check_inputs(const TensorView& q, const TensorView& k, const TensorView& v,
                          const AttentionOptions& options) {
  constexpr const char* kFour = "[batch, heads, length, head_dim]";
  InputExtents extents;
  extents.q = check_tensor(kWho, q, "q", 4, kFour);
  extents.k = check_tensor(kWho, k, "k", 4, kFour);
  extents.v = check_tensor(kWho, v, "v", 4, kFour);
  check_dtype(q, "q");
  check_same_dtype(kWho, k, "k", q);
  check_same_dtype(kWho, v, "v", q);
  if (q.device.kind == Device::Kind::cuda)
    gpu(q.device);  // throws with a reason if it does not exist
  check_same_device(kWho, k, "k", q);
  check_same_device(kWho, v, "v", q);
  check_same_device(kWho, options.sink, "sink", q);
  KEYHOLE_CHECK(k.shape[3] == q.shape[3], "attention: q has head_dim ", q.shape[3], " but k has ",
                k.shape[3], "; they must be equal");
  for (const auto& [head_dim, name] : {std::pair{q.shape[3], "q"}, std::pair{v.shape[3], "v"}}) {
    KEYHOLE_CHECK(head_dim >= 1 && head_dim <= kMaxHeadDim, "attention: ", name, " has head_dim ",
                  head_dim, "; accepted are 1 to ", kMaxHeadDim);
  }
  KEYHOLE_CHECK(k.shape[0] == q.shape[0] && v.shape[0] == q.shape[0],
                "attention: q, k and v have batch ", q.shape[0], ", ", k.shape[0], " and ",
                v.shape[0], "; they must be equal");
  KEYHOLE_CHECK(k.shape[1] == v.shape[1], "attention: k has ", k.shape[1], " heads and v has ",
                v.shape[1], "; they must be equal");
  KEYHOLE_CHECK(k.shape[1] == 0 ? q.shape[1] == 0 : q.shape[1] % k.shape[1] == 0,
                "attention: q has ", q.shape[1], " heads and k has ", k.shape[1],
                "; the heads of q must be a multiple of those of k");
  KEYHOLE_CHECK(k.shape[2] == v.shape[2], "attention: k has length ", k.shape[2], " and v has ",
                v.shape[2], "; they must be equal");
  check_normalizer(options.normalizer);
  if (options.scale) {
    KEYHOLE_CHECK(std::isfinite(*options.scale), "attention: scale is ", *options.scale,
                  "; it must be a finite number, or left out for head_dim ** -0.5");
  }
  KEYHOLE_CHECK(std::isfinite(options.softcap) && options.softcap >= 0, "attention: softcap is ",
                options.softcap, "; it must be a positive number, or 0 for none");
  KEYHOLE_CHECK(options.threads >= 0, "attention: threads is ", options.threads,
                "; it must be positive, or 0 for all the machine has");
  if (options.sink.is_given()) {
    extents.sink = check_tensor(kWho, options.sink, "sink", 1, "[q_heads]");
    check_sizes(kWho, options.sink, "sink", {q.shape[1]}, "one logit per head of q");
    KEYHOLE_CHECK(options.sink.dtype == DType::f32, "attention: sink is ",
                  to_string(options.sink.dtype), "; it must be f32");
  }
  return extents;
}

// `like`: q, or the matching out if there is no q.
Extent check_lse(const TensorView& lse, const char* name, const TensorView& like,
                 const char* like_name) {
  const Extent extent = check_tensor(kWho, lse, name, 3, "[batch, heads, length]");
  check_same_device(kWho, lse, name, like, like_name);
  check_sizes(kWho, lse, name, {like.shape[0], like.shape[1], like.shape[2]},
              "batch, heads and length of ", like_name);
  const DType want = like.dtype == DType::f64 ? DType::f64 : DType::f32;
  KEYHOLE_CHECK(lse.dtype == want, "attention: ", name, " is ", to_string(lse.dtype),
                "; it must be ", to_string(want), " for ", to_string(like.dtype), " inputs");
  return extent;
}

Extent check_out(const TensorView& out, const char* name, const TensorView& q,
                 const TensorView& v) {
  const Extent extent = check_tensor(kWho, out, name, 4, "[batch, heads, length, head_dim]");
  check_same_dtype(kWho, out, name, q);
  check_same_device(kWho, out, name, q);
  check_sizes(kWho, out, name, {q.shape[0], q.shape[1], q.shape[2], v.shape[3]},
              "batch, heads and length of q and head_dim of v");
  return extent;
}

}  // namespace

void check_forward(const TensorView& q, const TensorView& k, const TensorView& v,
                   const TensorView& out, const TensorView& lse, const AttentionOptions& options) {
  const InputExtents inputs = check_inputs(q, k, v, options);
  const Extent out_extent = check_out(out, "out", q, v);
  check_output(kWho, out, "out");
  Extent lse_extent;
  if (lse.is_given()) {
    lse_extent = check_lse(lse, "lse", q, "q");
    check_output(kWho, lse, "lse");
  }
  for (const auto& [extent, name] :
       {std::pair{&inputs.q, "q"}, {&inputs.k, "k"}, {&inputs.v, "v"}, {&inputs.sink, "sink"}}) {
    check_apart(kWho, out_extent, "out", *extent, name);
    check_apart(kWho, lse_extent, "lse", *extent, name);
  }
  check_apart(kWho, out_extent, "out", lse_extent, "lse");
}

void check_backward(const TensorView& dout, const TensorView& q, const TensorView& k,
                    const TensorView& v, const TensorView& out, const TensorView& lse,
                    const Gradients& gradients, const AttentionOptions& options) {
  check_inputs(q, k, v, options);
  check_out(dout, "dout", q, v);
  check_out(out, "out", q, v);
  check_lse(lse, "lse", q, "q");
  if (options.dlse.is_given()) {
    KEYHOLE_CHECK(!options.normalizer.is_plain_softmax(),
                  "attention: dlse is given, and the normalizer is softmax; it is for entmax and "
                  "top_k. For softmax add a column to v (0), dout (1) and out (-dlse)");
    check_lse(options.dlse, "dlse", q, "q");
  }
  constexpr const char* kFour = "[batch, heads, length, head_dim]";
  const std::pair<const TensorView*, const char*> outputs[] = {
      {&gradients.dq, "dq"}, {&gradients.dk, "dk"}, {&gradients.dv, "dv"}};
  const TensorView* likes[] = {&q, &k, &v};
  const char* like_names[] = {"the shape of q", "the shape of k", "the shape of v"};
  for (int i = 0; i < 3; ++i) {
    const auto& [tensor, name] = outputs[i];
    const TensorView& like = *likes[i];
    check_tensor(kWho, *tensor, name, 4, kFour);
    check_same_dtype(kWho, *tensor, name, q);
    check_same_device(kWho, *tensor, name, q);
    check_sizes(kWho, *tensor, name, {like.shape[0], like.shape[1], like.shape[2], like.shape[3]},
                like_names[i]);
    check_output(kWho, *tensor, name);
    for (const auto& [input, input_name] : {std::pair{&dout, "dout"},
                                            {&q, "q"},
                                            {&k, "k"},
                                            {&v, "v"},
                                            {&out, "out"},
                                            {&lse, "lse"}}) {
      check_no_overlap(kWho, *tensor, name, *input, input_name);
    }
    for (int j = 0; j < i; ++j)
      check_no_overlap(kWho, *tensor, name, *outputs[j].first, outputs[j].second);
  }
  if (gradients.dsink.is_given()) {
    KEYHOLE_CHECK(options.sink.is_given(),
                  "attention: dsink is asked for but options.sink is not given");
    check_tensor(kWho, gradients.dsink, "dsink", 1, "[q_heads]");
    check_same_device(kWho, gradients.dsink, "dsink", q);
    check_sizes(kWho, gradients.dsink, "dsink", {q.shape[1]}, "one gradient per head of q");
    KEYHOLE_CHECK(gradients.dsink.dtype == DType::f32, "attention: dsink is ",
                  to_string(gradients.dsink.dtype), "; it must be f32");
    check_output(kWho, gradients.dsink, "dsink");
  }
}

void check_merge(const TensorView& into_out, const TensorView& into_lse, const TensorView& from_out,
                 const TensorView& from_lse) {
  check_tensor(kWho, into_out, "out", 4, "[batch, heads, length, head_dim]");
  check_dtype(into_out, "out");
  check_output(kWho, into_out, "out");
  check_tensor(kWho, from_out, "the other out", 4, "[batch, heads, length, head_dim]");
  check_same_dtype(kWho, from_out, "the other out", into_out, "out");
  check_same_device(kWho, from_out, "the other out", into_out, "out");
  KEYHOLE_CHECK(into_out.device.kind == Device::Kind::cpu || into_out.dtype != DType::f64,
                "merge: the tensors are f64 on a GPU; f64 is merged in host memory only, copy them "
                "first");
  check_sizes(kWho, from_out, "the other out",
              {into_out.shape[0], into_out.shape[1], into_out.shape[2], into_out.shape[3]},
              "the shape of out");
  check_lse(into_lse, "lse", into_out, "out");
  check_output(kWho, into_lse, "lse");
  check_lse(from_lse, "the other lse", into_out, "out");
}

}  // namespace keyhole
