// tests/support/check_case.cpp
// The checks of one case, cheapest and most telling first. The kernel runs before the reference, on
// poisoned memory.
#include "support/check_case.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/check.h"
#include "keyhole/attention.h"
#include "plan/plan_state.h"
#include "runtime/dispatch.h"
#include "runtime/gpu.h"
#include "runtime/registry.h"
#include "support/laws.h"
#include "support/on_gpu.h"
#include "support/plan_compare.h"
#include "support/tolerance.h"
#ifdef KEYHOLE_HAVE_CUDA
#include "support/gpu/check_on_gpu.h"
#endif

namespace keyhole::test {
namespace {

TileShape tile_of(const Case& c, const KernelChoice& kernel, const KernelEntry& entry,
                  const Plan& plan) {
  if (kernel.tile.q > 0) return kernel.tile;
  return c.batch * c.heads == 0 ? entry.tiles.at(0) : pick_tile(entry, plan);
}

// Whether the public API takes this kernel of the cpu: it takes the first for the dtype. The
// others, for machines that lack instructions of the first, are run directly.
bool is_what_the_api_takes(const KernelEntry& kernel) {
  const auto first = std::ranges::find_if(kernel_table(), [&](const KernelEntry& other) {
    return other.backend == kernel.backend && other.operation == kernel.operation &&
           other.dtype == kernel.dtype;
  });
  return &*first == &kernel;
}

bool is_on_gpu(const KernelChoice& kernel) { return kernel.forward->device == Device::Kind::cuda; }
bool rounds_weights(const KernelChoice& kernel) { return kernel.forward->rounds_weights; }

void throw_if_damaged(const std::string& damage) {
  if (!damage.empty()) throw Error(ErrorKind::internal, damage);
}

void run_all(const Case& c, const KernelChoice& kernel, const Plan& plan, const Inputs& in,
             Outputs& o, int threads) {
  run_forward_of(c, kernel, plan, in, o, threads);
  if (kernel.backward) run_backward_of(c, kernel, plan, in, o, threads);
}

Failure compare_forward(const Case& c, const Outputs& o, const ExpectedForward& want,
                        CheckStats& stats) {
  for (const auto& [name, tensor, expected] :
       {std::tuple{"lse", &o.lse, &want.lse}, std::tuple{"out", &o.out, &want.out}}) {
    const std::string text =
        disagreement(name, tensor->view().dtype, tensor->values(), *expected, &stats.worst);
    if (!text.empty()) return {"forward", text};
  }
  (void)c;
  return {};
}

Failure compare_gradients(const Case& c, const Outputs& o, const ExpectedGradients& want,
                          CheckStats& stats) {
  for (const auto& [name, tensor, expected] :
       {std::tuple{"dv", &o.dv, &want.dv}, std::tuple{"dk", &o.dk, &want.dk},
        std::tuple{"dq", &o.dq, &want.dq}, std::tuple{"dsink", &o.dsink, &want.dsink}}) {
    if (tensor == &o.dsink && !c.has_sink) continue;
    const std::string text =
        disagreement(name, tensor->view().dtype, tensor->values(), *expected, &stats.worst);
    if (!text.empty()) return {"backward", text};
  }
  return {};
}

// The number of keys with score 0 that gives this lse. For entmax n x^r = 1, with x = 1 - (alpha -
// 1) lambda.
double keys_of_lse(const Normalizer& normalizer, double lse) {
  const double bend = normalizer.alpha - 1;
  return std::exp(bend == 0 ? lse : -std::log1p(-bend * lse) / bend);
}

// q = 0: every allowed key has score 0, so that exp(lse) is their number. Exact in fp32 far beyond
// the lengths here, whatever the tolerance of values hides.
Failure count_probe(Case c, const KernelChoice& kernel, const Plan& plan,
                    const AllowedPairs& allowed) {
  c.regime = Regime::count;
  c.has_sink = false;
  c.layouts = {};
  const Inputs in = make_inputs(c, allowed);
  Outputs o = make_outputs(c);
  run_forward_of(c, kernel, plan, in, o, c.threads);
  int64_t row = 0;
  for (int64_t batch = 0; batch < c.batch; ++batch) {
    for (int64_t head = 0; head < c.heads; ++head) {
      for (int64_t query = 0; query < c.q_len; ++query, ++row) {
        const int64_t attended = allowed.count(batch, head, query), top_k = c.normalizer.top_k;
        const int64_t want = top_k > 0 ? std::min(attended, top_k) : attended;
        const double lse = o.lse.get(row), counted = keys_of_lse(c.normalizer, lse);
        if (want == 0 ? lse == -INFINITY : std::llround(counted) == want) continue;
        return {"count", say("batch ", batch, " head ", head, " query ", query, " counts ", counted,
                             " keys; the pattern allows ", want)};
      }
    }
  }
  return {};
}

// A row that sees nothing: out exactly +0, lse exactly -inf (or the sink, rounded), dq exactly 0.
Failure check_empty_rows(const Case& c, const AllowedPairs& allowed, const Inputs& in,
                         const Outputs& o, bool has_backward) {
  int64_t row = 0;
  for (int64_t batch = 0; batch < c.batch; ++batch) {
    for (int64_t head = 0; head < c.heads; ++head) {
      for (int64_t query = 0; query < c.q_len; ++query, ++row) {
        if (allowed.count(batch, head, query) != 0) continue;
        const double want_lse = c.has_sink ? in.sink.get(head) : -INFINITY;
        const double lse = o.lse.get(row);
        if (c.has_sink ? std::abs(lse - want_lse) > 0x1p-22 * std::abs(want_lse)
                       : lse != want_lse) {
          return {"empty row", say("lse[", row, "] is ", lse, ", not ", want_lse)};
        }
        for (int64_t x = 0; x < c.v_head_dim; ++x) {
          const double value = o.out.get(row * c.v_head_dim + x);
          if (value != 0 || std::signbit(value)) {
            return {"empty row", say("out of row ", row, " is ", value, ", not 0")};
          }
        }
        for (int64_t x = 0; has_backward && x < c.head_dim; ++x) {
          const double value = o.dq.get(row * c.head_dim + x);
          if (value != 0) return {"empty row", say("dq of row ", row, " is ", value, ", not 0")};
        }
      }
    }
  }
  return {};
}

Failure same_bits(const char* kind, const Case& c, const Outputs& a, const Outputs& b,
                  bool has_backward) {
  const auto differ = [&](const char* name, const PoisonedTensor& x,
                          const PoisonedTensor& y) -> std::string {
    const auto x_bits = x.bits(), y_bits = y.bits();
    for (size_t i = 0; i < x_bits.size(); ++i) {
      // Which NaN is not part of the contract; that it is one is.
      if (x_bits[i] == y_bits[i]) continue;
      const double x_value = x.get(int64_t(i)), y_value = y.get(int64_t(i));
      if (std::isnan(x_value) && std::isnan(y_value)) continue;
      return say(name, "[", i, "] is ", x_value, " and then ", y_value);
    }
    return "";
  };
  std::string text = differ("out", a.out, b.out);
  if (text.empty()) text = differ("lse", a.lse, b.lse);
  if (text.empty() && has_backward) text = differ("dq", a.dq, b.dq);
  if (text.empty() && has_backward) text = differ("dk", a.dk, b.dk);
  if (text.empty() && has_backward) text = differ("dv", a.dv, b.dv);
  if (text.empty() && has_backward && c.has_sink) text = differ("dsink", a.dsink, b.dsink);
  return text.empty() ? Failure{} : Failure{kind, text};
}

Failure check_damage(const Inputs& in, const Outputs& o) {
  std::string text = damage_of(in);
  if (text.empty()) text = damage_of(o);
  return text.empty() ? Failure{} : Failure{"poison", text};
}

// A support as a forward pass must leave it: ascending keys that the row may see, then -1.
Failure check_support_form(const Case& c, const AllowedPairs& allowed,
                           const std::vector<int32_t>& support, int32_t canary) {
  if (support.back() != canary) return {"support", "is written past its end"};
  for (int64_t row = 0; row < c.batch * c.heads * c.q_len; ++row) {
    const int32_t* const keys = support.data() + row * kSupportKeys;
    if (keys[0] == kLongSupport) continue;
    const uint8_t* const may_see =
        allowed.row(row / c.q_len / c.heads, row / c.q_len % c.heads, row % c.q_len);
    for (int64_t n = 0; n < kSupportKeys; ++n) {
      const bool is_end = keys[n] == -1 && (n + 1 == kSupportKeys || keys[n + 1] == -1);
      const bool is_next = keys[n] >= 0 && keys[n] < c.k_len && may_see[keys[n]] &&
                           (n == 0 || keys[n - 1] < keys[n]);
      if (!is_end && !is_next) {
        return {"support", say("row ", row, " has ", keys[n], " in place ", n)};
      }
    }
  }
  return {};
}

// Entmax and top_k with the support of the forward pass: its form, and gradients as good as
// without. On a GPU also with every third row as if it were long, in both orders of sums.
Failure check_support(const Case& c, const KernelChoice& kernel, const Plan& made,
                      const AllowedPairs& allowed, const Inputs& in, const ExpectedGradients& want,
                      CheckStats& stats) {
  constexpr int32_t kCanary = -77;
  const int64_t rows = c.batch * c.heads * c.q_len;
  std::vector<int32_t> support(size_t(rows * kSupportKeys + 1), kCanary);
  Outputs o = make_outputs(c);
  AttentionOptions options = in.options;
  options.support = IndexView(support.data(), {c.batch, c.heads, c.q_len, kSupportKeys});
  if (is_on_gpu(kernel)) {
    throw_if_damaged(forward_on_gpu(kernel, made, c, in, o, &support));
  } else {
    attention_forward(in.q.view(), in.k.view(), in.v.view(), made, o.out.view(), o.lse.view(),
                      options);
  }
  if (const Failure f = check_support_form(c, allowed, support, kCanary)) return f;
  const auto check = [&](const char* what, bool is_deterministic) {
    if (is_on_gpu(kernel)) {
      KernelChoice choice = kernel;
      choice.is_deterministic = is_deterministic;
      throw_if_damaged(backward_on_gpu(choice, made, c, in, o, &support));
    } else {
      Gradients gradients{o.dq.view(), o.dk.view(), o.dv.view(), {}};
      if (c.has_sink) gradients.dsink = o.dsink.view();
      attention_backward(in.dout.view(), in.q.view(), in.k.view(), in.v.view(), o.out.view(),
                         o.lse.view(), made, gradients, options);
    }
    Failure f = check_damage(in, o);
    if (!f) f = compare_gradients(c, o, want, stats);
    if (f) f.detail = say(what, ": ", f.detail);
    return f;
  };
  if (Failure f = check("with support", true)) return f;
  if (!is_on_gpu(kernel)) return {};
  if (Failure f = check("with support, in any order", false)) return f;
  for (int64_t row = 0; row < rows; row += 3) support[size_t(row * kSupportKeys)] = kLongSupport;
  if (Failure f = check("with some support", true)) return f;
  return check("with some support, in any order", false);
}

Failure check_kernel(const Case& c, KernelChoice kernel, CheckStats& stats) {
  const Pattern pattern = build(c.pattern, c.shape());
  const Plan made = make_plan(pattern, c.shape(), c.policy());
  const AllowedPairs allowed(pattern, c.shape());
  const TileShape tile = tile_of(c, kernel, *kernel.forward, made);
  if (const auto text = compare_plan_with_pairs(made, allowed, tile); !text.empty()) {
    return {"plan", text};
  }
  stats.pairs += c.batch * c.heads * c.q_len * c.k_len;

  const Inputs in = make_inputs(c, allowed);
  Outputs o = make_outputs(c);
  if (is_on_gpu(kernel)) {
    // Another kernel would run instead, with other bits; it has its own turn.
    const std::string why = why_refused(*kernel.forward, c, views_of(in, o), kernel.shared_bytes);
    if (!why.empty()) {
      stats.refused.add(why);
      return {};
    }
  }
  if (is_on_gpu(kernel) && kernel.backward &&
      !why_refused(*kernel.backward, c, views_of(in, o), kernel.shared_bytes).empty()) {
    kernel.backward = nullptr;
  }
  run_all(c, kernel, made, in, o, c.threads);
  ++stats.kernel_runs;
  const bool has_backward = kernel.backward != nullptr;
  if (const Failure f = check_damage(in, o)) return f;
  if (const Failure f = check_empty_rows(c, allowed, in, o, has_backward)) return f;

  const ExpectedForward want = expect_forward(c, pattern, allowed, in, rounds_weights(kernel));
  if (const Failure f = compare_forward(c, o, want, stats)) return f;
  if (has_backward) {
    const bool rounds = rounds_weights(kernel) || kernel.backward->rounds_weights;
    const auto gradients = expect_gradients(c, pattern, allowed, in, want, rounds);
    if (const Failure f = compare_gradients(c, o, gradients, stats)) return f;
    if (!c.normalizer.is_plain_softmax()) {
      if (Failure f = check_support(c, kernel, made, allowed, in, gradients, stats)) return f;
    }
    if (is_on_gpu(kernel)) {  // the fast route, whose sums have no fixed order
      KernelChoice fast = kernel;
      fast.is_deterministic = false;
      Outputs unordered = make_outputs(c);
      run_all(c, fast, made, in, unordered, c.threads);
      if (const Failure f = check_damage(in, unordered)) return f;
      if (const Failure f = compare_gradients(c, unordered, gradients, stats)) return f;
    }
  }
  if (const Failure f = count_probe(c, kernel, made, allowed)) return f;

  Outputs again = make_outputs(c);
  run_all(c, kernel, made, in, again, c.threads);
  if (const Failure f = same_bits("rerun", c, o, again, has_backward)) return f;
  const Inputs plain_in = contiguous(c, in);
  Outputs plain_out = contiguous_outputs(c);
  run_all(c, kernel, made, plain_in, plain_out, 1 + c.threads % 3);
  if (const Failure f = same_bits("layout", c, o, plain_out, has_backward)) return f;
  return check_law(c, kernel, pattern, made, plain_in, plain_out, want);
}

}  // namespace

void run_forward_of(const Case& c, const KernelChoice& kernel, const Plan& plan, const Inputs& in,
                    Outputs& o, int threads) {
  if (is_on_gpu(kernel)) {
    throw_if_damaged(forward_on_gpu(kernel, plan, c, in, o));
    return;
  }
  if (kernel.tile.q == 0 && is_what_the_api_takes(*kernel.forward)) {
    AttentionOptions options = in.options;
    options.backend = kernel.forward->backend;
    options.threads = threads;
    attention_forward(in.q.view(), in.k.view(), in.v.view(), plan, o.out.view(), o.lse.view(),
                      options);
    return;
  }
  ForwardArgs args = judge::forward_args(views_of(in, o), c.rule());
  args.threads = threads;
  run_forward(*kernel.forward, plan, tile_of(c, kernel, *kernel.forward, plan), args);
}

void run_backward_of(const Case& c, const KernelChoice& kernel, const Plan& plan, const Inputs& in,
                     Outputs& o, int threads) {
  if (is_on_gpu(kernel)) {
    throw_if_damaged(backward_on_gpu(kernel, plan, c, in, o));
    return;
  }
  if (kernel.tile.q == 0 && is_what_the_api_takes(*kernel.backward)) {
    AttentionOptions options = in.options;
    options.backend = kernel.backward->backend;
    options.threads = threads;
    Gradients gradients{o.dq.view(), o.dk.view(), o.dv.view(), {}};
    if (c.has_sink) gradients.dsink = o.dsink.view();
    attention_backward(in.dout.view(), in.q.view(), in.k.view(), in.v.view(), o.out.view(),
                       o.lse.view(), plan, gradients, options);
    return;
  }
  BackwardArgs args = judge::backward_args(views_of(in, o), c.rule());
  args.threads = threads;
  run_backward(*kernel.backward, plan, tile_of(c, kernel, *kernel.backward, plan), args);
}

namespace {

const char* wanted_backends() { return std::getenv("KEYHOLE_TEST_BACKENDS"); }

bool is_named(const std::string& backend) {
  return say(",", wanted_backends(), ",").find("," + backend + ",") != std::string::npos;
}

bool is_wanted(const KernelEntry& kernel) {
  if (wanted_backends() == nullptr) return true;
  return is_named(kernel.backend) || (kernel.device == Device::Kind::cuda && is_named("gpu"));
}

// Whether a case may be for none of the backends that are asked for: no GPU has f64, and those that
// are not for everything lack dtypes and widths.
bool may_find_no_kernel(const Case& c) {
  if (wanted_backends() == nullptr) return false;
  if (c.dtype == DType::f64) return true;
  if (is_named("gpu") || is_named("simple") || is_named("cpu")) return false;
  if (!c.normalizer.is_plain_softmax()) return true;
  return std::ranges::any_of(kernel_table(), [](const KernelEntry& kernel) {
    return is_wanted(kernel) && why_not_here(kernel).empty();
  });
}

// The backward kernel that goes with a forward one: of the same width and rounding where there is
// one, so that every kernel of the table has its turn.
const KernelEntry* backward_beside(const KernelEntry& forward, int64_t widest) {
  const KernelEntry* found = nullptr;
  for (const KernelEntry& kernel : kernel_table()) {
    const bool fits = kernel.operation == Operation::backward &&
                      kernel.backend == forward.backend && kernel.dtype == forward.dtype &&
                      kernel.weights == forward.weights && kernel.max_head_dim >= widest &&
                      why_not_here(kernel).empty();
    if (!fits) continue;
    if (kernel.max_head_dim == forward.max_head_dim &&
        kernel.rounds_weights == forward.rounds_weights) {
      return &kernel;
    }
    if (found == nullptr) found = &kernel;
  }
  return found;
}

const KernelEntry* forward_before(const KernelEntry& backward, int64_t widest) {
  for (const KernelEntry& kernel : kernel_table()) {
    if (kernel.operation == Operation::forward && kernel.device == backward.device &&
        kernel.dtype == backward.dtype && kernel.weights == backward.weights &&
        kernel.max_head_dim >= widest && why_not_here(kernel).empty()) {
      return &kernel;
    }
  }
  return nullptr;
}

KernelChoice with_tile(const Case& c, KernelChoice choice) {
  const std::vector<TileShape>& tiles = tiles_of(choice);
  if (c.tile >= 0 && !tiles.empty()) choice.tile = tiles[size_t(c.tile) % tiles.size()];
  return choice;
}

// Configurations for less shared memory than there is take turns; the case says which.
int64_t drawn_limit(const Case& c, const KernelEntry& kernel) {
  const std::vector<int64_t> limits = shared_limits(kernel);
  return limits[size_t(c.data / 128) % limits.size()];
}

}  // namespace

const std::vector<TileShape>& tiles_of(const KernelChoice& choice) {
  const bool is_lent = choice.backward && choice.backward->backend != choice.forward->backend;
  return is_lent ? choice.backward->tiles : choice.forward->tiles;
}

std::vector<KernelChoice> kernels_for(const Case& c) {
  std::vector<KernelChoice> choices;
  const int64_t widest = std::max(c.head_dim, c.v_head_dim);
  for (const KernelEntry& forward : kernel_table()) {
    if (forward.operation != Operation::forward || forward.dtype != c.dtype ||
        forward.weights != weights_of(c.normalizer) || forward.max_head_dim < widest ||
        !why_not_here(forward).empty() || !is_wanted(forward)) {
      continue;
    }
    choices.push_back(with_tile(c, {&forward, backward_beside(forward, widest), {0, 0}}));
  }
  // Backward kernels of backends that have no forward ones: with the first that goes before them.
  for (const KernelEntry& backward : kernel_table()) {
    const bool is_alone = std::ranges::none_of(kernel_table(), [&](const KernelEntry& kernel) {
      return kernel.operation == Operation::forward && kernel.backend == backward.backend;
    });
    if (!is_alone || backward.dtype != c.dtype || backward.weights != weights_of(c.normalizer) ||
        backward.max_head_dim < widest || !why_not_here(backward).empty() || !is_wanted(backward)) {
      continue;
    }
    const KernelEntry* forward = forward_before(backward, widest);
    if (forward == nullptr) continue;
    choices.push_back(with_tile(c, {forward, &backward, {0, 0}}));
  }
  return choices;
}

std::vector<int64_t> shared_limits(const KernelEntry& kernel) {
  if (kernel.device == Device::Kind::cpu || kernel.backend == "simple") return {0};
  std::vector<int64_t> limits = {0};
  for (const int64_t kib : {227, 163, 99}) {
    if (kib * 1024 < gpu({Device::Kind::cuda, 0}).shared_bytes) limits.push_back(kib * 1024);
  }
  return limits;
}

Failure check_case_with(const Case& c, const KernelChoice& kernel, CheckStats* stats,
                        Judged judged) {
  CheckStats unused;
  try {
#ifdef KEYHOLE_HAVE_CUDA
    // The reference of a GPU knows softmax only.
    if (is_on_gpu(kernel) && judged == Judged::where_it_runs && c.normalizer.is_plain_softmax()) {
      return check_on_gpu(c, kernel, stats ? *stats : unused);
    }
#endif
    (void)judged;
    return check_kernel(c, kernel, stats ? *stats : unused);
  } catch (const Error& error) {
    return {say("error ", to_string(error.kind())), error.what()};
  } catch (const std::exception& error) {
    return {"exception", error.what()};
  }
}

Failure check_case(const Case& c, CheckStats* stats, Judged judged) {
  const auto kernels = kernels_for(c);
  if (kernels.empty() && may_find_no_kernel(c)) {
    if (stats) stats->refused.add("no kernel that is asked for reads its dtype and width");
    return {};
  }
  if (kernels.empty()) return {"no kernel", say("none for ", to_string(c.dtype))};
  for (KernelChoice kernel : kernels) {
    kernel.shared_bytes = drawn_limit(c, *kernel.forward);
    if (Failure f = check_case_with(c, kernel, stats, judged)) {
      f.detail = say(kernel.forward->name, ": ", f.detail);
      return f;
    }
  }
  return {};
}

}  // namespace keyhole::test
