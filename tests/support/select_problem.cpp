// tests/support/select_problem.cpp
#include "support/select_problem.h"

#include <cmath>
#include <limits>
#include <memory>

#include "base/check.h"
#include "base/dtype.h"
#include "base/random.h"
#include "runtime/select_registry.h"
#include "select/requests.h"
#include "select/selection.h"
#include "support/allowed_pairs.h"

namespace keyhole::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int32_t kCanary = 0x5eadbee5;

DType sum_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

double draw_score(ScoreKind kind, int64_t entry, Random& random) {
  switch (kind) {
    case ScoreKind::normal:
      return random.normal();
    case ScoreKind::few_values:
      return double(random.between(-3, 3));
    case ScoreKind::equal:
      return 1.5;
    case ScoreKind::zeros:
      return random.chance(50) ? 0.0 : -0.0;
    case ScoreKind::mostly_zero:
      return random.chance(97) ? 0 : random.uniform();
    case ScoreKind::rising:
      return double(entry);
    case ScoreKind::falling:
      return -double(entry);
    case ScoreKind::steps:
      return -double(entry / 37);
    case ScoreKind::subnormal:
      return 0x1p-148 * double(random.between(-4, 4));
    case ScoreKind::special:
      return random.pick({std::nan(""), kInfinity, -kInfinity, random.normal(), random.normal()});
    case ScoreKind::nothing:
      return random.chance(50) ? std::nan("") : -kInfinity;
  }
  return 0;
}

std::optional<Plan> plan_of(const std::string& text, const SelectCase& c) {
  if (text.empty()) return {};
  const Shape one{1, 1, c.q_len, c.entries};
  return plan(parse(text), c.one_plan_for_all ? one : Shape{c.batch, c.groups, c.q_len, c.entries});
}

EntryPredicate predicate_of(const std::string& text, const SelectCase& c) {
  if (text.empty()) return {};
  const Shape shape{c.batch, c.groups, c.q_len, c.entries};
  const auto pairs = std::make_shared<AllowedPairs>(parse(text), shape);
  return [pairs](int64_t b, int64_t g, int64_t t, int64_t s) { return (*pairs)(b, g, t, s); };
}

}  // namespace

const char* to_string(ScoreKind kind) {
  constexpr const char* kNames[] = {"normal",      "few_values", "equal",   "zeros",
                                    "mostly_zero", "rising",     "falling", "steps",
                                    "subnormal",   "special",    "nothing"};
  return kNames[int(kind)];
}

std::string to_text(const SelectCase& c) {
  return say("batch ", c.batch, ", groups ", c.groups, ", heads ", c.heads, ", q_len ", c.q_len,
             ", entries ", c.entries, ", head_dim ", c.head_dim, ", k ", c.k, ", ",
             to_string(c.dtype), c.has_w ? ", w" : "", c.has_scale ? ", k_scale" : "",
             c.has_counts ? "" : ", no counts", ", visible \"", c.visible, "\", always \"",
             c.always, c.one_plan_for_all ? "\"" : "\", plans per group", ", layout ",
             int(c.layout), ", ", to_string(c.kind), c.on_gpu ? ", on a GPU" : "",
             ", extra columns ", c.extra_columns, ", threads ", c.threads, ", seed ", c.seed);
}

Lists32::Lists32(int64_t batch, int64_t groups, int64_t rows, int64_t columns)
    : shape_{batch, groups, rows, columns},
      stride_(columns + 3),
      memory_(size_t(batch * groups * rows * stride_ + 3), kCanary) {}

IndexView Lists32::view() const { return view_in(const_cast<int32_t*>(memory_.data())); }
IndexView Lists32::view_in(int32_t* memory) const {
  IndexView view(memory + 3, {shape_[0], shape_[1], shape_[2], shape_[3]});
  view.strides[0] = shape_[1] * shape_[2] * stride_;
  view.strides[1] = shape_[2] * stride_;
  view.strides[2] = stride_;
  return view;
}
std::vector<int32_t> Lists32::row(int64_t i) const {
  const auto begin = memory_.begin() + 3 + i * stride_;
  return {begin, begin + shape_[3]};
}
std::string Lists32::damage() const {
  for (size_t i = 0; i < memory_.size(); ++i) {
    const bool is_between = int64_t(i) < 3 || (int64_t(i) - 3) % stride_ >= shape_[3];
    if (is_between && memory_[i] != kCanary) return say("wrote outside the lists, at ", i);
  }
  return "";
}

SelectProblem::SelectProblem(const SelectCase& of)
    : c(of),
      q(place(c.dtype, {c.batch, c.groups * c.heads, c.q_len, c.head_dim}, c.layout), false),
      k(place(c.dtype, {c.batch, c.groups, c.entries, c.head_dim}, c.layout), false),
      w(place(sum_dtype(c.dtype), {c.batch, c.groups * c.heads, c.q_len}, c.layout), false),
      k_scale(place(sum_dtype(c.dtype), {c.batch, c.groups, c.entries}, c.layout), false),
      given_scores(place(c.dtype, {c.batch, c.groups, c.q_len, c.entries}, c.layout), false),
      scores(place(sum_dtype(c.dtype), {c.batch, c.groups, c.q_len, c.entries}, Layout::padded),
             true),
      indices(c.batch, c.groups, c.q_len, c.k + c.extra_columns),
      counts(c.batch, c.groups, c.q_len, 1),
      visible_(plan_of(c.visible, c)),
      always_(plan_of(c.always, c)) {
  Random random(c.seed);
  q.fill([&](int64_t) { return random.normal(); });
  k.fill([&](int64_t) { return random.normal(); });
  w.fill([&](int64_t) { return random.normal(); });
  k_scale.fill([&](int64_t) { return random.chance(20) ? -0.5 : 0.5 + random.uniform(); });
  given_scores.fill(
      [&](int64_t i) { return draw_score(c.kind, i % std::max<int64_t>(1, c.entries), random); });
  for (PoisonedTensor* tensor : {&q, &k, &w, &k_scale, &given_scores, &scores}) tensor->seal();
}

IndexerView SelectProblem::indexer() const {
  return {q.view(), k.view(), c.has_w ? w.view() : TensorView(),
          c.has_scale ? k_scale.view() : TensorView()};
}
Selection SelectProblem::selection() const {
  return {indices.view(), c.has_counts ? counts.view() : IndexView()};
}
SelectOptions SelectProblem::options() const {
  return {.k = c.k, .visible = visible_, .always = always_, .threads = c.threads};
}
EntryPredicate SelectProblem::visible() const { return predicate_of(c.visible, c); }
EntryPredicate SelectProblem::always() const { return predicate_of(c.always, c); }

SelectTensors::SelectTensors(SelectProblem& p)
    : indexer(p.indexer()),
      given_scores(p.given_scores.view()),
      scores(p.scores.view()),
      selection(p.selection()) {
  if (!p.c.on_gpu) return;
  copies_.emplace();
  indexer = {copies_->input(p.q), copies_->input(p.k),
             p.c.has_w ? copies_->input(p.w) : TensorView(),
             p.c.has_scale ? copies_->input(p.k_scale) : TensorView()};
  given_scores = copies_->input(p.given_scores);
  scores = copies_->output(p.scores);
  const auto lists_there = [&](Lists32& lists) {
    IndexView view = lists.view_in(copies_->integers(lists.memory()));
    view.device = {Device::Kind::cuda, 0};
    return view;
  };
  selection.indices = lists_there(p.indices);
  if (p.c.has_counts) selection.counts = lists_there(p.counts);
}
std::string SelectTensors::finish() { return copies_ ? copies_->finish() : ""; }

std::string difference(const SelectProblem& p, const ReferenceSelection& want) {
  for (size_t i = 0; i < want.rows.size(); ++i) {
    std::vector<int32_t> row = want.rows[i];
    const int32_t count = int32_t(row.size());
    row.resize(size_t(p.c.k + p.c.extra_columns), -1);
    const std::vector<int32_t> got = p.indices.row(int64_t(i));
    for (size_t x = 0; x < row.size(); ++x) {
      if (got[x] == row[x]) continue;
      return say("row ", i, ", place ", x, ": ", got[x], " instead of ", row[x], "; ", count,
                 " are expected");
    }
    if (p.c.has_counts && p.counts.row(int64_t(i))[0] != count) {
      return say("row ", i, ": count ", p.counts.row(int64_t(i))[0], " instead of ", count);
    }
  }
  if (!p.indices.damage().empty()) return p.indices.damage();
  return p.counts.damage();
}

namespace {

std::string damage_of(const SelectProblem& p) {
  for (const PoisonedTensor* tensor : {&p.q, &p.k, &p.w, &p.k_scale, &p.given_scores, &p.scores}) {
    if (!tensor->damage().empty()) return tensor->damage();
  }
  return "";
}

// The sum of the sizes of all terms of a score: what rounding errors are proportional to.
double size_of_score(const SelectProblem& p, int64_t b, int64_t g, int64_t t, int64_t s) {
  const SelectCase& c = p.c;
  double size = 0;
  for (int64_t j = g * c.heads; j < (g + 1) * c.heads; ++j) {
    const int64_t query = (b * c.groups * c.heads + j) * c.q_len + t;
    const int64_t entry = (b * c.groups + g) * c.entries + s;
    double dot = 0;
    for (int64_t x = 0; x < c.head_dim; ++x) {
      dot += std::abs(p.q.get(query * c.head_dim + x) * p.k.get(entry * c.head_dim + x));
    }
    size += c.has_w ? std::abs(p.w.get(query)) * dot : dot;
  }
  return size;
}

}  // namespace

namespace {

// error: SelectKernel::product_error.
std::string difference_of_scores(const SelectProblem& p, double error) {
  const SelectCase& c = p.c;
  const std::vector<double> want = reference_index_scores(p.indexer(), p.visible());
  const double unit = rounding_unit(sum_dtype(c.dtype));
  for (int64_t i = 0; i < p.scores.num_elements(); ++i) {
    const double got = p.scores.get(i), wanted = want[size_t(i)];
    if (got == wanted) continue;
    const int64_t s = i % c.entries, t = i / c.entries % c.q_len;
    const int64_t g = i / c.entries / c.q_len % c.groups, b = i / c.entries / c.q_len / c.groups;
    const double scale =
        c.has_scale ? std::abs(p.k_scale.get((b * c.groups + g) * c.entries + s)) : 1;
    const double allowed =
        (unit * (4 + double(c.head_dim + c.heads)) + error) * scale * size_of_score(p, b, g, t, s);
    if (std::abs(got - wanted) <= allowed) continue;
    return say("score ", b, ", ", g, ", ", t, ", ", s, ": ", got, " instead of ", wanted);
  }
  return damage_of(p);
}

// What finish() says, else what `judge` says.
template <class Judge>
std::string finished(SelectTensors& tensors, Judge judge) {
  const std::string wrong = tensors.finish();
  return wrong.empty() ? judge() : wrong;
}

}  // namespace

std::string check_scores(const SelectCase& c, const SelectKernel& kernel) {
  SelectProblem p(c);
  SelectTensors tensors(p);
  run_index_scores(kernel, tensors.indexer, tensors.scores, p.options());
  return finished(tensors, [&] { return difference_of_scores(p, kernel.product_error); });
}

std::string check_scores(const SelectCase& c) {
  SelectProblem p(c);
  SelectTensors tensors(p);
  const SelectKernel& kernel = choose_select(
      select_table(), request_of(SelectOperation::scores, tensors.indexer, 0, "auto"));
  index_scores(tensors.indexer, tensors.scores, p.options());
  return finished(tensors, [&] { return difference_of_scores(p, kernel.product_error); });
}

std::string check_select(const SelectCase& c, const SelectKernel& kernel,
                         const SelectKernel& scores) {
  SelectProblem p(c);
  SelectTensors tensors(p);
  run_index_scores(scores, tensors.indexer, tensors.scores, p.options());
  run_select_keys(kernel, tensors.indexer, tensors.selection, p.options());
  return finished(tensors, [&] {
    return difference(p, reference_top_k(p.scores.view(), c.k, p.visible(), p.always(), true));
  });
}

namespace {

std::string difference_of_top_k(const SelectProblem& p) {
  const auto want = reference_top_k(p.given_scores.view(), p.c.k, p.visible(), p.always());
  const std::string found = difference(p, want);
  return found.empty() ? damage_of(p) : found;
}

}  // namespace

std::string check_top_k(const SelectCase& c, const SelectKernel& kernel) {
  SelectProblem p(c);
  SelectTensors tensors(p);
  run_top_k(kernel, tensors.given_scores, tensors.selection, p.options());
  return finished(tensors, [&] { return difference_of_top_k(p); });
}

std::string check_top_k(const SelectCase& c) {
  SelectProblem p(c);
  SelectTensors tensors(p);
  top_k(tensors.given_scores, tensors.selection, p.options());
  return finished(tensors, [&] { return difference_of_top_k(p); });
}

std::string check_select_keys(const SelectCase& c) {
  SelectProblem p(c), again(c);
  SelectTensors tensors(p), tensors_again(again);
  index_scores(tensors.indexer, tensors.scores, p.options());
  select_keys(tensors.indexer, tensors.selection, p.options());
  run_select_keys_in_two_steps(tensors_again.indexer, tensors_again.selection, again.options(),
                               /*most_bytes=*/4096);
  for (SelectTensors* each : {&tensors, &tensors_again}) {
    if (const std::string wrong = each->finish(); !wrong.empty()) return wrong;
  }
  const auto want = reference_top_k(p.scores.view(), c.k, p.visible(), p.always(), true);
  if (const std::string found = difference(p, want); !found.empty()) return found;
  if (const std::string found = difference(again, want); !found.empty()) {
    return "in two steps: " + found;
  }
  return damage_of(p);
}

}  // namespace keyhole::test
