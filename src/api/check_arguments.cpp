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

std::string shape_text(const TensorView& tensor) {
  std::string text = "[";
  for (int d = 0; d < tensor.rank; ++d) text += say(d ? ", " : "", tensor.shape[d]);
  return text + "]";
}

// First and one-past-last byte that a tensor can touch, equal if there are none. Computed with
// overflow checks.
struct Extent {
  uintptr_t begin = 0, end = 0;
};
Extent extent_of(const TensorView& tensor, const char* name) {
  if (!tensor.is_given()) return {0, 0};
  int64_t last = 0;
  for (int d = 0; d < tensor.rank; ++d) {
    if (tensor.shape[d] == 0) return {0, 0};
    last = checked_add(last, checked_mul(tensor.shape[d] - 1, tensor.strides[d], name), name);
  }
  const int64_t bytes = checked_mul(checked_add(last, 1, name), bytes_of(tensor.dtype), name);
  const auto begin = reinterpret_cast<uintptr_t>(tensor.data);
  return {begin, begin + uintptr_t(bytes)};
}

// The rules for every tensor, whatever its role. Returns its extent, so that it is computed once.
Extent check_tensor(const TensorView& tensor, const char* name, int rank, const char* expected) {
  KEYHOLE_CHECK(tensor.rank == rank, "attention: ", name, " has ", tensor.rank,
                " dimensions; expected ", rank, ": ", expected);
  for (int d = 0; d < rank; ++d) {
    KEYHOLE_CHECK(tensor.shape[d] >= 0, "attention: ", name, " has shape ", shape_text(tensor),
                  "; sizes must not be negative");
    KEYHOLE_CHECK(tensor.shape[d] <= 1 || tensor.strides[d] >= 0, "attention: ", name,
                  " has stride ", tensor.strides[d], " in dimension ", d,
                  "; negative strides are not supported, copy it first");
  }
  const int64_t elements = tensor.num_elements();
  const int last = rank - 1;
  const bool is_contiguous = tensor.shape[last] <= 1 || tensor.strides[last] == 1 || elements == 0;
  KEYHOLE_CHECK(rank != 4 || is_contiguous, "attention: ", name, " has stride ",
                tensor.strides[last],
                " in its last dimension; it must be contiguous there (stride 1), copy it first");
  KEYHOLE_CHECK(elements == 0 || tensor.data != nullptr, "attention: ", name, " has shape ",
                shape_text(tensor), " but its data pointer is null");
  const auto address = reinterpret_cast<uintptr_t>(tensor.data);
  KEYHOLE_CHECK(address % uintptr_t(bytes_of(tensor.dtype)) == 0, "attention: ", name,
                " is not aligned to its element size of ", bytes_of(tensor.dtype), " bytes");
  return extent_of(tensor, name);
}

void check_sizes(const TensorView& tensor, const char* name, std::initializer_list<int64_t> want,
                 const char* meaning, const char* of = "") {
  if (std::equal(want.begin(), want.end(), tensor.shape)) return;
  std::string expected;
  for (const int64_t size : want) expected += say(expected.empty() ? "[" : ", ", size);
  KEYHOLE_CHECK(false, "attention: ", name, " has shape ", shape_text(tensor), "; expected ",
                expected, "], ", meaning, of);
}

std::string place_text(const Device& device) {
  return device.kind == Device::Kind::cpu ? "in host memory" : say("on GPU ", device.ordinal);
}
void check_same_device(const TensorView& tensor, const char* name, const TensorView& q,
                       const char* q_name = "q") {
  if (!tensor.is_given()) return;
  KEYHOLE_CHECK(tensor.device == q.device, "attention: ", q_name, " is ", place_text(q.device),
                " but ", name, " is ", place_text(tensor.device),
                "; all tensors of a call must be in one place");
}

void check_same_dtype(const TensorView& tensor, const char* name, const TensorView& q,
                      const char* q_name = "q") {
  KEYHOLE_CHECK(tensor.dtype == q.dtype, "attention: ", q_name, " is ", to_string(q.dtype), " but ",
                name, " is ", to_string(tensor.dtype), "; they must be equal");
}

void check_apart(const Extent& output, const char* output_name, const Extent& other,
                 const char* other_name) {
  const bool is_apart = output.end <= other.begin || other.end <= output.begin ||
                        output.begin == output.end || other.begin == other.end;
  KEYHOLE_CHECK(is_apart, "attention: ", output_name, " overlaps ", other_name,
                " in memory; outputs need memory of their own");
}

}  // namespace

void check_output(const TensorView& tensor, const char* name) {
  if (tensor.num_elements() == 0) return;  // any strides are fine
  int64_t reach = 0;  // elements spanned by the dimensions seen so far, narrowest stride first
  bool used[TensorView::kMaxRank] = {};
  for (int round = 0; round < tensor.rank; ++round) {
    int next = -1;
    for (int d = 0; d < tensor.rank; ++d) {
      if (!used[d] && (next < 0 || tensor.strides[d] < tensor.strides[next])) next = d;
    }
    used[next] = true;
    if (tensor.shape[next] == 1) continue;
    KEYHOLE_CHECK(tensor.strides[next] > reach, "attention: ", name,
                  " is written but its elements overlap: ", "stride ", tensor.strides[next],
                  " in dimension ", next,
                  " is smaller than the span of the dimensions inside it; pass memory of its own");
    reach += (tensor.shape[next] - 1) * tensor.strides[next];
  }
}

void check_no_overlap(const TensorView& output, const char* output_name, const TensorView& other,
                      const char* other_name) {
  check_apart(extent_of(output, output_name), output_name, extent_of(other, other_name),
              other_name);
}

namespace {

struct InputExtents {
  Extent q, k, v, sink;
};
InputExtents check_inputs(const TensorView& q, const TensorView& k, const TensorView& v,
                          const AttentionOptions& options) {
  constexpr const char* kFour = "[batch, heads, length, head_dim]";
  InputExtents extents;
  extents.q = check_tensor(q, "q", 4, kFour);
  extents.k = check_tensor(k, "k", 4, kFour);
  extents.v = check_tensor(v, "v", 4, kFour);
  check_same_dtype(k, "k", q);
  check_same_dtype(v, "v", q);
  if (q.device.kind == Device::Kind::cuda)
    gpu(q.device);  // throws with a reason if it does not exist
  check_same_device(k, "k", q);
  check_same_device(v, "v", q);
  check_same_device(options.sink, "sink", q);
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
    extents.sink = check_tensor(options.sink, "sink", 1, "[q_heads]");
    check_sizes(options.sink, "sink", {q.shape[1]}, "one logit per head of q");
    KEYHOLE_CHECK(options.sink.dtype == DType::f32, "attention: sink is ",
                  to_string(options.sink.dtype), "; it must be f32");
  }
  return extents;
}

// `like`: q, or the matching out if there is no q.
Extent check_lse(const TensorView& lse, const char* name, const TensorView& like,
                 const char* like_name) {
  const Extent extent = check_tensor(lse, name, 3, "[batch, heads, length]");
  check_same_device(lse, name, like, like_name);
  check_sizes(lse, name, {like.shape[0], like.shape[1], like.shape[2]},
              "batch, heads and length of ", like_name);
  const DType want = like.dtype == DType::f64 ? DType::f64 : DType::f32;
  KEYHOLE_CHECK(lse.dtype == want, "attention: ", name, " is ", to_string(lse.dtype),
                "; it must be ", to_string(want), " for ", to_string(like.dtype), " inputs");
  return extent;
}

Extent check_out(const TensorView& out, const char* name, const TensorView& q,
                 const TensorView& v) {
  const Extent extent = check_tensor(out, name, 4, "[batch, heads, length, head_dim]");
  check_same_dtype(out, name, q);
  check_same_device(out, name, q);
  check_sizes(out, name, {q.shape[0], q.shape[1], q.shape[2], v.shape[3]},
              "batch, heads and length of q and head_dim of v");
  return extent;
}

}  // namespace

void check_forward(const TensorView& q, const TensorView& k, const TensorView& v,
                   const TensorView& out, const TensorView& lse, const AttentionOptions& options) {
  const InputExtents inputs = check_inputs(q, k, v, options);
  const Extent out_extent = check_out(out, "out", q, v);
  check_output(out, "out");
  Extent lse_extent;
  if (lse.is_given()) {
    lse_extent = check_lse(lse, "lse", q, "q");
    check_output(lse, "lse");
  }
  for (const auto& [extent, name] :
       {std::pair{&inputs.q, "q"}, {&inputs.k, "k"}, {&inputs.v, "v"}, {&inputs.sink, "sink"}}) {
    check_apart(out_extent, "out", *extent, name);
    check_apart(lse_extent, "lse", *extent, name);
  }
  check_apart(out_extent, "out", lse_extent, "lse");
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
    check_tensor(*tensor, name, 4, kFour);
    check_same_dtype(*tensor, name, q);
    check_same_device(*tensor, name, q);
    check_sizes(*tensor, name, {like.shape[0], like.shape[1], like.shape[2], like.shape[3]},
                like_names[i]);
    check_output(*tensor, name);
    for (const auto& [input, input_name] : {std::pair{&dout, "dout"},
                                            {&q, "q"},
                                            {&k, "k"},
                                            {&v, "v"},
                                            {&out, "out"},
                                            {&lse, "lse"}}) {
      check_no_overlap(*tensor, name, *input, input_name);
    }
    for (int j = 0; j < i; ++j)
      check_no_overlap(*tensor, name, *outputs[j].first, outputs[j].second);
  }
  if (gradients.dsink.is_given()) {
    KEYHOLE_CHECK(options.sink.is_given(),
                  "attention: dsink is asked for but options.sink is not given");
    check_tensor(gradients.dsink, "dsink", 1, "[q_heads]");
    check_same_device(gradients.dsink, "dsink", q);
    check_sizes(gradients.dsink, "dsink", {q.shape[1]}, "one gradient per head of q");
    KEYHOLE_CHECK(gradients.dsink.dtype == DType::f32, "attention: dsink is ",
                  to_string(gradients.dsink.dtype), "; it must be f32");
    check_output(gradients.dsink, "dsink");
  }
}

void check_merge(const TensorView& into_out, const TensorView& into_lse, const TensorView& from_out,
                 const TensorView& from_lse) {
  check_tensor(into_out, "out", 4, "[batch, heads, length, head_dim]");
  check_output(into_out, "out");
  check_tensor(from_out, "the other out", 4, "[batch, heads, length, head_dim]");
  check_same_dtype(from_out, "the other out", into_out, "out");
  check_same_device(from_out, "the other out", into_out, "out");
  KEYHOLE_CHECK(into_out.device.kind == Device::Kind::cpu || into_out.dtype != DType::f64,
                "merge: the tensors are f64 on a GPU; f64 is merged in host memory only, copy them "
                "first");
  check_sizes(from_out, "the other out",
              {into_out.shape[0], into_out.shape[1], into_out.shape[2], into_out.shape[3]},
              "the shape of out");
  check_lse(into_lse, "lse", into_out, "out");
  check_output(into_lse, "lse");
  check_lse(from_lse, "the other lse", into_out, "out");
}

}  // namespace keyhole
