// src/judge/problem.cpp
#include "judge/problem.h"

#include <cmath>
#include <limits>

#include "base/check.h"
#include "runtime/dispatch.h"

namespace keyhole::judge {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

}  // namespace

Problem::Problem(const Subject& s, const KernelEntry& entry)
    : subject(s), kernel(entry), random(s.seed) {
  const DType dtype = entry.dtype, lse_dtype = dtype == DType::f64 ? DType::f64 : DType::f32;
  const auto made = [&](int64_t heads, int64_t length, int64_t dim, bool swaps, bool is_output) {
    return PoisonedTensor(place_apart(dtype, {s.batch, heads, length, dim}, swaps, s.is_aligned),
                          is_output);
  };
  in.q = made(s.heads, s.q_len, s.head_dim, /*swaps=*/true, /*is_output=*/false);
  in.k = made(s.kv_heads, s.k_len, s.head_dim, false, false);
  in.v = made(s.kv_heads, s.k_len, s.v_head_dim, true, false);
  in.dout = made(s.heads, s.q_len, s.v_head_dim, true, false);
  in.sink = PoisonedTensor(place_apart(DType::f32, {s.heads}), /*is_output=*/false);
  o.out = made(s.heads, s.q_len, s.v_head_dim, /*swaps=*/false, /*is_output=*/true);
  o.lse = PoisonedTensor(place_apart(lse_dtype, {s.batch, s.heads, s.q_len}), true);
  o.dq = made(s.heads, s.q_len, s.head_dim, false, true);
  o.dk = made(s.kv_heads, s.k_len, s.head_dim, true, true);
  o.dv = made(s.kv_heads, s.k_len, s.v_head_dim, false, true);
  o.dsink = PoisonedTensor(place_apart(DType::f32, {s.heads}), true);
  support = PoisonedTensor(place_apart(DType::f32, {s.batch, s.heads, s.q_len, kSupportKeys},
                                       /*swaps=*/false, /*is_aligned=*/true),
                           true);
  Shape shape = s.plan.shape();
  shape.batch = s.batch, shape.heads = s.heads;
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) patterns.push_back(s.pattern.for_head(shape, b, h));
  }
  options.normalizer = s.normalizer;
  options.scale = 1 / std::sqrt(double(s.head_dim));
  options.threads = s.q_len > kLongestFullyChecked ? 0 : 1;  // the reference is soon done
}

SupportRows Problem::support_rows(const TensorView& view) {
  return {static_cast<int32_t*>(view.data), view.strides[0], view.strides[1], view.strides[2]};
}

bool Problem::attends(int64_t b, int64_t h, int64_t query, int64_t key) const {
  return patterns[size_t(b * subject.heads + h)].allows(query, key);
}

void Problem::randomise() {
  for (PoisonedTensor* tensor : {&in.q, &in.k, &in.v, &in.dout}) fill_normal(*tensor);
  // Long sequences are not searched for such keys: that would take the time of all pairs.
  if (subject.q_len > kLongestFullyChecked) return;
  const int64_t group = subject.heads / subject.kv_heads;
  for (int64_t b = 0; b < subject.batch; ++b) {
    for (int64_t h = 0; h < subject.kv_heads; ++h) {
      for (int64_t key = 0; key < subject.k_len; ++key) {
        bool is_seen = false;
        for (int64_t i = 0; i < group * subject.q_len && !is_seen; ++i) {
          is_seen = attends(b, h * group + i / subject.q_len, i % subject.q_len, key);
        }
        if (!is_seen) spoil_key(k_row(b, h, key));
      }
    }
  }
}

void Problem::fill_normal(PoisonedTensor& tensor) {
  tensor.fill([&](int64_t) { return random.normal(); });
}

void Problem::spoil_key(int64_t row) {
  for (int64_t x = 0; x < subject.head_dim; ++x) in.k.set(row * subject.head_dim + x, kNan);
  for (int64_t x = 0; x < subject.v_head_dim; ++x) in.v.set(row * subject.v_head_dim + x, kNan);
}

void Problem::use_softcap_and_sinks() {
  options.softcap = 1.5;  // small enough that normal scores feel it
  fill_normal(in.sink);
  options.sink = in.sink.view();
}

// Inputs come back as well: a write to them shows.
CallTensors Problem::on_device(DeviceCopies& copies) {
  const auto there = [&](PoisonedTensor& tensor) { return copies.output(tensor); };
  CallTensors call;
  call.q = there(in.q), call.k = there(in.k), call.v = there(in.v);
  call.out = there(o.out), call.lse = there(o.lse);
  if (options.sink.is_given()) call.sink = there(in.sink);
  if (kernel.operation == Operation::forward) return call;
  call.dout = there(in.dout), call.dq = there(o.dq), call.dk = there(o.dk), call.dv = there(o.dv);
  if (options.sink.is_given()) call.dsink = there(o.dsink);
  return call;
}

void Problem::run(TileShape tile) {
  seal(in);
  DeviceCopies copies(kernel.device == Device::Kind::cuda ? subject.gpu : Device{});
  const CallTensors call = on_device(copies);
  const WeightRule rule{options.normalizer, *options.scale, options.softcap};
  SupportRows rows;
  if (has_support) rows = support_rows(copies.output(support));
  if (kernel.operation == Operation::forward) {
    ForwardArgs args = forward_args(call, rule);
    args.support = rows;
    run_forward(kernel, subject.plan, tile, args);
  } else {
    BackwardArgs args = backward_args(call, rule);
    args.support = rows;
    args.schedule = schedule_of(kernel, subject.plan, tile, args, /*deterministic=*/false);
    run_backward(kernel, subject.plan, tile, args);
  }
  copies.finish();
}

Answer Problem::answer() const {
  Answer answer{views_of(in, o),  subject.pattern, options, subject.plan.shape().offset,
                subject.seed + 1, has_equal_terms};
  if (!options.sink.is_given()) answer.sink = answer.dsink = {};
  return answer;
}

void Problem::expect_intact(Finding& finding) const {
  for (const std::string& damage : {damage_of(in), damage_of(o), support.damage()}) {
    if (damage.empty()) continue;
    finding.error = INFINITY;
    finding.complaint = damage;
  }
}

}  // namespace keyhole::judge
