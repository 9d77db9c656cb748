// tests/support/laws.cpp
// Each law runs the kernel once more on something equivalent.
#include "support/laws.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/check.h"
#include "base/dtype.h"
#include "keyhole/attention.h"
#include "plan/plan_state.h"

namespace keyhole::test {
namespace {

// Rounding counted several times over.
Expected loosened(const Expected& expected, double factor) {
  Expected loose = expected;
  for (double& bound : loose.bound) bound *= factor;
  return loose;
}

std::string difference(const char* name, const PoisonedTensor& a, const PoisonedTensor& b) {
  for (int64_t i = 0; i < a.num_elements(); ++i) {
    const double x = a.get(i), y = b.get(i);
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    return say(name, "[", i, "] is ", x, " and ", y);
  }
  return "";
}

}  // namespace

Failure merge_law(const Case& c, const KernelChoice& kernel, const Pattern& pattern,
                  const Inputs& in, const ExpectedForward& want) {
  Case part = c;
  part.layouts = {};
  const int64_t cut = c.k_len / 2 + int64_t(c.data % 5);
  Outputs first = make_outputs(part), second = make_outputs(part);
  run_forward_of(c, kernel, make_plan(pattern & sinks(cut), c.shape(), c.policy()), in, first,
                 c.threads);
  Case without_sink = c;  // the sink is one more term of the sum: it belongs to one of the two
  without_sink.has_sink = false;
  Inputs rest = contiguous(without_sink, in);
  run_forward_of(without_sink, kernel, make_plan(pattern & ~sinks(cut), c.shape(), c.policy()),
                 rest, second, c.threads);
  merge(first.out.view(), first.lse.view(), second.out.view(), second.lse.view());
  std::string text =
      disagreement("merged lse", first.lse.view().dtype, first.lse.values(), loosened(want.lse, 3));
  if (text.empty()) {
    // Both parts were rounded to the dtype before they met.
    Expected out = loosened(want.out, 3);
    double largest = 0;
    for (const double value : in.v.values()) {
      if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
    }
    const double rounding = 2 * rounding_unit(c.dtype) * largest;
    for (double& bound : out.bound) bound += rounding;
    text = disagreement("merged out", c.dtype, first.out.values(), out);
  }
  return text.empty() ? Failure{} : Failure{"merge", text};
}

Plan reloaded(const Plan& plan, uint64_t name) {
  const auto path = std::filesystem::temp_directory_path() /
                    say("keyhole_proof_", ::getpid(), "_", name, ".plan");
  plan.save(path.string());
  Plan loaded = Plan::load(path.string());
  std::filesystem::remove(path);
  return loaded;
}

Failure reload_law(const Case& c, const KernelChoice& kernel, const Plan& made, const Inputs& in,
                   const Outputs& o) {
  Outputs again = contiguous_outputs(c);
  run_forward_of(c, kernel, reloaded(made, c.data), in, again, c.threads);
  std::string text = difference("out", o.out, again.out);
  if (text.empty()) text = difference("lse", o.lse, again.lse);
  return text.empty() ? Failure{} : Failure{"reload", text};
}

Failure repeated_heads_law(const Case& c, const KernelChoice& kernel, const Plan& made,
                           const Inputs& in, const Outputs& o) {
  Case repeated = c;
  repeated.kv_heads = c.heads;
  repeated.layouts = {};
  const AllowedPairs nothing(build({"not", {}, {{"dense", {}, {}}}}, {c.batch, c.heads, 0, 0, {}}),
                             {c.batch, c.heads, 0, 0, {}});
  Case plain = repeated;
  plain.regime = Regime::normal;
  Inputs all = make_inputs(plain, nothing);
  const int64_t group = c.heads / c.kv_heads;
  const auto source_row =
      [&](int64_t row) {  // of [batch, heads, k_len] in [batch, kv_heads, k_len]
        const int64_t key = row % c.k_len, head = row / c.k_len % c.heads,
                      batch = row / c.k_len / c.heads;
        return (batch * c.kv_heads + head / group) * c.k_len + key;
      };
  const auto repeat = [&](PoisonedTensor& to, const PoisonedTensor& from, int64_t columns) {
    to.fill([&](int64_t i) { return from.get(source_row(i / columns) * columns + i % columns); });
  };
  all.q.fill([&](int64_t i) { return in.q.get(i); });
  all.dout.fill([&](int64_t i) { return in.dout.get(i); });
  repeat(all.k, in.k, c.head_dim);
  repeat(all.v, in.v, c.v_head_dim);
  if (c.has_sink) all.sink.fill([&](int64_t i) { return in.sink.get(i); });
  Outputs again = make_outputs(repeated);
  run_forward_of(repeated, kernel, made, all, again, c.threads);
  std::string text = difference("out", o.out, again.out);
  if (text.empty()) text = difference("lse", o.lse, again.lse);
  return text.empty() ? Failure{} : Failure{"repeated heads", text};
}

Failure check_law(const Case& c, const KernelChoice& kernel, const Pattern& pattern,
                  const Plan& plan, const Inputs& in, const Outputs& o,
                  const ExpectedForward& want) {
  switch (c.data / 8 % 16) {
    case 0:
    case 1:
    case 2:
      if (!c.normalizer.is_plain_softmax()) return {};  // their statistics do not add up
      return merge_law(c, kernel, pattern, in, want);
    case 3:
      return reload_law(c, kernel, plan, in, o);
    case 4:
    case 5:
    case 6:
      return repeated_heads_law(c, kernel, plan, in, o);
    default:
      return {};
  }
}

}  // namespace keyhole::test
