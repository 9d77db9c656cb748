// src/judge/select_problem.cpp
#include "judge/select_problem.h"

#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/random.h"

namespace keyhole::judge {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int32_t kListCanary = 0x5eadbee5;

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
      return random.pick({kNan, kInfinity, -kInfinity, random.normal(), random.normal()});
    case ScoreKind::nothing:
      return random.chance(50) ? kNan : -kInfinity;
  }
  return 0;
}

Shape shape_of(const SelectCase& c) { return {c.batch, c.groups, c.q_len, c.entries, c.offset}; }

std::optional<Plan> plan_of(const std::optional<Pattern>& pattern, const SelectCase& c) {
  if (!pattern) return {};
  Shape shape = shape_of(c);
  if (c.one_plan_for_all) shape.batch = shape.heads = 1;
  return plan(*pattern, shape);
}

// The pattern is asked once for each pair: judges ask several times.
EntryPredicate predicate_of(const std::optional<Pattern>& pattern, const SelectCase& c) {
  if (!pattern) return {};
  std::vector<bool> pairs;
  pairs.reserve(size_t(c.batch * c.groups * c.q_len * c.entries));
  for (int64_t group = 0; group < c.batch * c.groups; ++group) {
    const HeadPattern head = pattern->for_head(shape_of(c), group / c.groups, group % c.groups);
    for (int64_t t = 0; t < c.q_len; ++t) {
      for (int64_t s = 0; s < c.entries; ++s) pairs.push_back(head.allows(t, s));
    }
  }
  return [pairs = std::move(pairs), groups = c.groups, q_len = c.q_len, entries = c.entries](
             int64_t b, int64_t g, int64_t t, int64_t s) {
    return bool(pairs[size_t(((b * groups + g) * q_len + t) * entries + s)]);
  };
}

}  // namespace

const char* to_string(ScoreKind kind) {
  constexpr const char* kNames[] = {"normal",      "few_values", "equal",   "zeros",
                                    "mostly_zero", "rising",     "falling", "steps",
                                    "subnormal",   "special",    "nothing"};
  return kNames[int(kind)];
}

std::string to_text(const SelectCase& c) {
  const auto text_of = [](const std::optional<Pattern>& pattern) {
    return pattern ? pattern->text() : "";
  };
  return say("batch ", c.batch, ", groups ", c.groups, ", heads ", c.heads, ", q_len ", c.q_len,
             ", entries ", c.entries, ", head_dim ", c.head_dim, ", k ", c.k, ", ",
             to_string(c.dtype), c.has_w ? ", w" : "", c.has_scale ? ", k_scale" : "",
             c.has_counts ? "" : ", no counts", ", visible \"", text_of(c.visible), "\", always \"",
             text_of(c.always), c.offset ? say("\", offset ", *c.offset) : "\"",
             c.one_plan_for_all ? "" : ", plans per group", ", layout ", int(c.layout), ", ",
             to_string(c.kind), c.device.kind == Device::Kind::cuda ? ", on a GPU" : "",
             ", extra columns ", c.extra_columns, ", threads ", c.threads, ", seed ", c.seed);
}

Lists32::Lists32(int64_t batch, int64_t groups, int64_t rows, int64_t columns)
    : shape_{batch, groups, rows, columns},
      stride_(columns + 3),
      memory_(size_t(batch * groups * rows * stride_ + 3), kListCanary) {}

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
    if (is_between && memory_[i] != kListCanary) return say("wrote outside the lists, at ", i);
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
      sees_(predicate_of(c.visible, c)),
      has_first_(predicate_of(c.always, c)),
      visible_(plan_of(c.visible, c)),
      always_(plan_of(c.always, c)) {
  draw();
  if (sees_) spoil_what_is_not_visible();
  for (PoisonedTensor* tensor : {&q, &k, &w, &k_scale, &given_scores, &scores}) tensor->seal();
}

void SelectProblem::draw() {
  Random random(c.seed);
  const bool is_integer = c.kind == ScoreKind::few_values;
  const auto number = [&](int64_t) {
    return is_integer ? double(random.between(-2, 2)) : random.normal();
  };
  q.fill(number), k.fill(number), w.fill(number);
  if (c.kind == ScoreKind::equal || c.kind == ScoreKind::zeros) q.fill(0);
  k_scale.fill([&](int64_t) { return random.chance(20) ? -0.5 : 0.5 + random.uniform(); });
  given_scores.fill(
      [&](int64_t i) { return draw_score(c.kind, i % std::max<int64_t>(1, c.entries), random); });
  if (c.kind != ScoreKind::special || k.num_elements() == 0) return;
  for (int64_t group = 0; group < c.batch * c.groups; ++group) {
    for (const double special : {kNan, kInfinity}) {
      const int64_t entry = group * c.entries + random.below(c.entries);
      k.set(entry * c.head_dim + random.below(c.head_dim), special);
    }
  }
}

// A score that would be chosen if it were read, and a key that no query of its group may score.
void SelectProblem::spoil_what_is_not_visible() {
  for (int64_t group = 0; group < c.batch * c.groups; ++group) {
    std::vector<bool> is_seen(static_cast<size_t>(c.entries));
    for (int64_t t = 0; t < c.q_len; ++t) {
      for (int64_t s = 0; s < c.entries; ++s) {
        if (sees_(group / c.groups, group % c.groups, t, s)) {
          is_seen[size_t(s)] = true;
        } else {
          given_scores.set((group * c.q_len + t) * c.entries + s, kInfinity);
        }
      }
    }
    for (int64_t s = 0; s < c.entries; ++s) {
      if (is_seen[size_t(s)]) continue;
      for (int64_t x = 0; x < c.head_dim; ++x) {
        k.set((group * c.entries + s) * c.head_dim + x, kNan);
      }
    }
  }
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
std::string SelectProblem::damage() const {
  for (const PoisonedTensor* tensor : {&q, &k, &w, &k_scale, &given_scores, &scores}) {
    if (!tensor->damage().empty()) return tensor->damage();
  }
  return indices.damage().empty() ? counts.damage() : indices.damage();
}

// Inputs come back as well: a write to them shows.
SelectTensors::SelectTensors(SelectProblem& p) : copies_(p.c.device) {
  const auto lists_there = [&](Lists32& lists) {
    IndexView view = lists.view_in(copies_.integers(lists.memory()));
    view.device = p.c.device;
    return view;
  };
  indexer = {copies_.output(p.q), copies_.output(p.k),
             p.c.has_w ? copies_.output(p.w) : TensorView(),
             p.c.has_scale ? copies_.output(p.k_scale) : TensorView()};
  given_scores = copies_.output(p.given_scores);
  scores = copies_.output(p.scores);
  selection.indices = lists_there(p.indices);
  if (p.c.has_counts) selection.counts = lists_there(p.counts);
}

}  // namespace keyhole::judge
