// cli/check/problem.cpp
#include "cli/check/problem.h"

#include <cmath>
#include <limits>

#include "base/check.h"
#include "cli/device_copies.h"
#include "runtime/dispatch.h"

namespace keyhole::cli {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

DType lse_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

}  // namespace

Problem::Problem(const Subject& s, const KernelEntry& entry)
    : subject(s),
      kernel(entry),
      dtype(entry.dtype),
      random(s.seed),
      q(dtype, {s.batch, s.heads, s.q_len, s.head_dim}, /*swaps=*/true, s.is_aligned),
      k(dtype, {s.batch, s.kv_heads, s.k_len, s.head_dim}, /*swaps=*/false, s.is_aligned),
      v(dtype, {s.batch, s.kv_heads, s.k_len, s.v_head_dim}, /*swaps=*/true, s.is_aligned),
      out(dtype, {s.batch, s.heads, s.q_len, s.v_head_dim}, /*swaps=*/false, s.is_aligned),
      lse(lse_dtype(dtype), {s.batch, s.heads, s.q_len}),
      dout(dtype, {s.batch, s.heads, s.q_len, s.v_head_dim}, /*swaps=*/true, s.is_aligned),
      dq(dtype, {s.batch, s.heads, s.q_len, s.head_dim}, /*swaps=*/false, s.is_aligned),
      dk(dtype, {s.batch, s.kv_heads, s.k_len, s.head_dim}, /*swaps=*/true, s.is_aligned),
      dv(dtype, {s.batch, s.kv_heads, s.k_len, s.v_head_dim}, /*swaps=*/false, s.is_aligned),
      sink(DType::f32, {s.heads}),
      dsink(DType::f32, {s.heads}),
      support(DType::f32, {s.batch, s.heads, s.q_len, kSupportKeys}, /*swaps=*/false,
              /*is_aligned=*/true) {
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
  q.fill_normal(random), k.fill_normal(random), v.fill_normal(random), dout.fill_normal(random);
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
        if (is_seen) continue;
        const int64_t row = k_row(b, h, key);
        for (int64_t x = 0; x < subject.head_dim; ++x) k.set(row * subject.head_dim + x, kNan);
        for (int64_t x = 0; x < subject.v_head_dim; ++x) v.set(row * subject.v_head_dim + x, kNan);
      }
    }
  }
}

void Problem::use_softcap_and_sinks() {
  options.softcap = 1.5;  // small enough that normal scores feel it
  sink.fill_normal(random);
  options.sink = sink.view();
}

// Inputs come back as well: a write beside them shows.
void Problem::run_forward(TileShape tile) {
  DeviceCopies copies(kernel.device == Device::Kind::cuda ? subject.gpu : Device{});
  const auto there = [&](HostileTensor& tensor) {
    return copies.output(tensor.memory(), tensor.view());
  };
  ForwardArgs args;
  args.q = there(q), args.k = there(k), args.v = there(v), args.out = there(out),
  args.lse = there(lse);
  args.rule = {options.normalizer, *options.scale, options.softcap};
  if (has_support) args.support = support_rows(there(support));
  if (options.sink.is_given()) args.sink = there(sink);
  keyhole::run_forward(kernel, subject.plan, tile, args);
  copies.finish();
}

void Problem::run_backward(TileShape tile) {
  DeviceCopies copies(kernel.device == Device::Kind::cuda ? subject.gpu : Device{});
  const auto there = [&](HostileTensor& tensor) {
    return copies.output(tensor.memory(), tensor.view());
  };
  BackwardArgs args;
  args.dout = there(dout), args.q = there(q), args.k = there(k), args.v = there(v);
  args.out = there(out), args.lse = there(lse);
  args.dq = there(dq), args.dk = there(dk), args.dv = there(dv);
  args.rule = {options.normalizer, *options.scale, options.softcap};
  if (has_support) args.support = support_rows(there(support));
  if (options.sink.is_given()) args.sink = there(sink), args.dsink = there(dsink);
  args.schedule = schedule_of(kernel, subject.plan, tile, args, /*deterministic=*/false);
  keyhole::run_backward(kernel, subject.plan, tile, args);
  copies.finish();
}

Answer Problem::answer() {
  Answer answer{.pattern = subject.pattern,
                .q = q.view(),
                .k = k.view(),
                .v = v.view(),
                .out = out.view(),
                .lse = lse.view(),
                .dout = dout.view(),
                .dq = dq.view(),
                .dk = dk.view(),
                .dv = dv.view(),
                .options = options,
                .offset = subject.plan.shape().offset,
                .seed = subject.seed + 1,
                .has_equal_terms = has_equal_terms};
  if (options.sink.is_given()) answer.dsink = dsink.view();
  return answer;
}

void expect_intact(Finding& finding, const Problem& problem) {
  for (const auto& [name, tensor] : {std::pair{"out", &problem.out},
                                     {"lse", &problem.lse},
                                     {"dq", &problem.dq},
                                     {"dk", &problem.dk},
                                     {"dv", &problem.dv},
                                     {"dsink", &problem.dsink},
                                     {"q", &problem.q},
                                     {"k", &problem.k},
                                     {"v", &problem.v},
                                     {"dout", &problem.dout},
                                     {"support", &problem.support}}) {
    if (!tensor->is_moat_intact()) {
      finding.error = INFINITY;
      finding.complaint = say("something was written beside ", name);
    }
  }
}

}  // namespace keyhole::cli
