// cli/check/problem.cpp
#include "cli/check/problem.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "base/check.h"
#include "base/dtype.h"
#include "cli/device_copies.h"
#include "runtime/dispatch.h"

namespace keyhole::cli {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

DType lse_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

// Infinite for anything and a NaN; nothing for two NaNs, which is what the reference asked for.
double difference(double got, double want) {
  if (std::isnan(want) && std::isnan(got)) return 0;
  if (got == want) return 0;
  const double distance = std::abs(got - want);
  return std::isnan(distance) ? kInfinity : distance;
}

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

Finding compare(const std::vector<Comparison>& results) {
  Finding worst;
  for (const Comparison& result : results) {
    KEYHOLE_ASSERT(
        result.got.size() == result.want.size() && result.want.size() == result.rough.size(),
        "check: ", result.name, " has ", result.got.size(), " numbers, the reference ",
        result.want.size());
    double largest = 0, cost = 0;
    for (size_t i = 0; i < result.want.size(); ++i) {
      if (!std::isfinite(result.want[i])) continue;
      largest = std::max(largest, std::abs(result.want[i]));
      cost = std::max(cost, difference(result.rough[i], result.want[i]));
    }
    // Twice what rounding costs here, and the rounding of the result itself. Few numbers, such as a
    // dsink for each head, are a small sample of what it may cost.
    constexpr size_t kFew = 16;
    const double times = result.want.size() < kFew ? 6 : 2;
    const double allowed = times * cost + 2 * result.rounding * largest + 1e-30;
    for (size_t i = 0; i < result.want.size(); ++i) {
      expect(worst, result.got[i], result.want[i], allowed,
             [&] { return say(result.name, " ", i); });
    }
  }
  return worst;
}

bool is_worse(Finding& finding, double got, double want, double allowed) {
  Finding here;
  here.error = difference(got, want), here.allowed = allowed;
  if (here.ratio() <= finding.ratio() && finding.allowed > 0) return false;
  finding.error = here.error, finding.allowed = allowed;
  return here.error > allowed;
}

void complain(Finding& finding, double got, double want, const std::string& where) {
  std::ostringstream text;
  text.precision(10);  // what differs is often in the last digits
  text << where << " is " << got << ", expected " << want;
  finding.complaint = text.str();
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
      finding.error = kInfinity;
      finding.complaint = say("something was written beside ", name);
    }
  }
}

Disturbed::Disturbed(const Problem& problem, double relative) {
  Random random(problem.subject.seed + 1);
  const auto disturb = [&](const HostileTensor& from, std::vector<double>& to, TensorView& view) {
    to = from.values();
    for (double& value : to) value *= 1 + relative * (2 * random.uniform() - 1);
    const int64_t* shape = from.view().shape;
    view = TensorView(to.data(), DType::f64, {shape[0], shape[1], shape[2], shape[3]});
  };
  disturb(problem.q, q, q_view), disturb(problem.k, k, k_view), disturb(problem.v, v, v_view);
  if (std::isfinite(problem.dout.size() > 0 ? problem.dout.get(0) : 0))
    disturb(problem.dout, dout, dout_view);
}

std::vector<double> farther(const std::vector<double>& want, std::vector<double> rough,
                            const std::vector<double>& other) {
  for (size_t i = 0; i < rough.size(); ++i) {
    if (difference(other[i], want[i]) > difference(rough[i], want[i])) rough[i] = other[i];
  }
  return rough;
}

double working_precision(const KernelEntry& kernel, Operation operation, const Subject& subject) {
  const bool is_backward = operation == Operation::backward;
  // A sum of n terms is off by about sqrt(n) roundings; the factors, the exponential and, in the
  // backward pass, a stored lse of several units cost a few more.
  const int64_t group = subject.heads / subject.kv_heads;
  const int64_t longest_sum = std::max({subject.head_dim, subject.v_head_dim, subject.k_len,
                                        is_backward ? group * subject.q_len : 0});
  double roundings = (is_backward ? 8 : 4) + std::sqrt(double(longest_sum));
  // x ** (1 / (alpha - 1)) multiplies the rounding of x.
  const double alpha = subject.normalizer.alpha;
  if (alpha > 1) roundings += 4 / std::max(alpha - 1, 0.02);
  if (kernel.dtype == DType::f64) return roundings * rounding_unit(DType::f64);
  // The backward pass of softmax is handed an `out` that was rounded to the dtype, and uses it.
  const bool uses_out = is_backward && kernel.weights == Weights::softmax;
  const bool is_rounded = uses_out || kernel.rounds_weights;
  return std::max(roundings * rounding_unit(DType::f32),
                  is_rounded ? 2 * rounding_unit(kernel.dtype) : 0);
}

}  // namespace keyhole::cli
