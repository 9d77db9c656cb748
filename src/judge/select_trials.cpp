// src/judge/select_trials.cpp
// The table of trials of kernels that select keys. Lists are compared exactly, so what they are
// tried with is ties, and what must never be chosen.
#include "judge/select_trials.h"

#include <algorithm>

#include "base/int_math.h"

namespace keyhole::judge {
namespace {

using Cases = std::vector<AnySelectCase>;

Device device_of(const SelectKernel& kernel, const SelectSubject& subject) {
  return kernel.device == Device::Kind::cuda ? subject.gpu : Device{};
}

SelectCase select_case(const SelectKernel& kernel, const SelectSubject& subject) {
  const Shape& shape = subject.shape;
  return {.batch = shape.batch,
          .groups = shape.heads,
          .heads = 3,
          .q_len = shape.q_len,
          .entries = shape.k_len,
          .head_dim = subject.head_dim.value_or(24),
          .k = std::clamp<int64_t>(shape.k_len / 5, 1, 300),
          .dtype = kernel.dtype,
          .visible = subject.visible,
          .offset = shape.offset,
          .one_plan_for_all = subject.one_plan_for_all,
          .layout = Layout::padded,
          .device = device_of(kernel, subject),
          .seed = subject.seed};
}

Cases of_kinds(SelectCase c, std::initializer_list<ScoreKind> kinds) {
  Cases cases;
  for (const ScoreKind kind : kinds) {
    c.kind = kind;
    cases.push_back(c);
  }
  return cases;
}

Cases scores_strided(const SelectKernel& kernel, const SelectSubject& subject) {
  return of_kinds(select_case(kernel, subject), {ScoreKind::normal});
}
Cases scores_scaled(const SelectKernel& kernel, const SelectSubject& subject) {
  SelectCase c = select_case(kernel, subject);
  c.has_w = false, c.has_scale = true;
  return of_kinds(c, {ScoreKind::normal});
}
Cases scores_tied(const SelectKernel& kernel, const SelectSubject& subject) {
  return of_kinds(select_case(kernel, subject), {ScoreKind::few_values, ScoreKind::zeros});
}
Cases scores_special(const SelectKernel& kernel, const SelectSubject& subject) {
  return of_kinds(select_case(kernel, subject), {ScoreKind::special});
}

Cases lists_strided(const SelectKernel& kernel, const SelectSubject& subject) {
  SelectCase c = select_case(kernel, subject);
  c.extra_columns = 5;
  if (kernel.operation == SelectOperation::select) return of_kinds(c, {ScoreKind::normal});
  return of_kinds(c, {ScoreKind::normal, ScoreKind::mostly_zero, ScoreKind::rising,
                      ScoreKind::falling, ScoreKind::steps, ScoreKind::subnormal});
}
Cases lists_of_ties(const SelectKernel& kernel, const SelectSubject& subject) {
  return of_kinds(select_case(kernel, subject),
                  {ScoreKind::few_values, ScoreKind::equal, ScoreKind::zeros});
}
Cases lists_of_special(const SelectKernel& kernel, const SelectSubject& subject) {
  const SelectCase c = select_case(kernel, subject);
  if (kernel.operation == SelectOperation::select) return of_kinds(c, {ScoreKind::special});
  return of_kinds(c, {ScoreKind::special, ScoreKind::nothing});
}
Cases lists_of_short_rows(const SelectKernel& kernel, const SelectSubject& subject) {
  SelectCase c = select_case(kernel, subject);
  c.kind = ScoreKind::special;  // select_keys takes all of a short row, whatever their scores
  Cases cases;
  for (const int64_t more : {0, 9}) {
    c.k = c.entries + more;
    if (c.k > 0) cases.push_back(c);
  }
  return cases;
}
Cases lists_with_always(const SelectKernel& kernel, const SelectSubject& subject) {
  SelectCase c = select_case(kernel, subject);
  Cases cases;
  // A few keys of a row; and more than k.
  for (const Pattern& always : {sinks(1) | window(2), ~dilated(3)}) {
    c.always = always;
    cases.push_back(c);
  }
  return cases;
}

LossCase loss_case(const SelectKernel& kernel, const SelectSubject& subject) {
  const Shape& shape = subject.shape;
  return {.batch = shape.batch,
          .groups = shape.heads,
          .head_dim = subject.head_dim.value_or(8),
          .target_heads = 2 * shape.heads,
          .kv_heads = shape.heads,
          .target_dim = subject.head_dim.value_or(16),
          .q_len = shape.q_len,
          .entries = shape.k_len,
          .dtype = kernel.dtype,
          .target_dtype = kernel.dtype == DType::e4m3 ? DType::bf16 : kernel.dtype,
          .pattern = subject.visible.value_or(dense()),
          .offset = shape.offset,
          .layout = Layout::padded,
          .device = device_of(kernel, subject),
          .seed = subject.seed};
}

Cases loss_of_plan(const SelectKernel& kernel, const SelectSubject& subject) {
  return {loss_case(kernel, subject)};
}
Cases loss_of_lists(const SelectKernel& kernel, const SelectSubject& subject) {
  LossCase c = loss_case(kernel, subject);
  Cases cases;
  for (const int64_t selected : {std::max<int64_t>(1, c.entries / 5), c.entries + 3}) {
    c.selected = selected;
    cases.push_back(c);
  }
  return cases;
}
Cases loss_of_rules(const SelectKernel& kernel, const SelectSubject& subject) {
  LossCase c = loss_case(kernel, subject);
  c.has_w = false, c.has_scale = true;
  c.softcap = 0.8, c.scale = 0.5, c.other_weight = 3;
  return {c};
}
Cases loss_of_pooled_keys(const SelectKernel& kernel, const SelectSubject& subject) {
  LossCase c = loss_case(kernel, subject);
  const int64_t k_len = c.entries;
  c.keys_per_entry = 3;
  c.entries = ceil_div(k_len, c.keys_per_entry);
  c.missing_keys = c.entries * c.keys_per_entry - k_len;
  Cases cases = {c};
  c.selected = std::max<int64_t>(1, c.entries / 2);
  cases.push_back(c);
  return cases;
}
Cases loss_of_rows(const SelectKernel& kernel, const SelectSubject& subject) {
  LossCase c = loss_case(kernel, subject);
  for (int64_t t = c.q_len / 3; t < c.q_len; t += 2) c.rows.push_back(int32_t(t));
  if (c.rows.empty()) return {};
  return {c};
}

using enum SelectOperation;
constexpr SelectTrial kTrials[] = {
    {"strides, NaN around", scores, scores_strided},
    {"k_scale, no w", scores, scores_scaled},
    {"ties, zeros of both signs", scores, scores_tied},
    {"NaN and infinity", scores, scores_special},
    {"strides, NaN around", top_k, lists_strided},
    {"ties, zeros of both signs", top_k, lists_of_ties},
    {"NaN and infinity", top_k, lists_of_special},
    {"rows shorter than k", top_k, lists_of_short_rows},
    {"keys that are always taken", top_k, lists_with_always},
    {"strides, NaN around", select, lists_strided},
    {"ties, zeros of both signs", select, lists_of_ties},
    {"NaN and infinity", select, lists_of_special},
    {"rows shorter than k", select, lists_of_short_rows},
    {"keys that are always taken", select, lists_with_always},
    {"strides, NaN around", loss, loss_of_plan},
    {"lists with padding", loss, loss_of_lists},
    {"softcap, keys elsewhere", loss, loss_of_rules},
    {"several keys an entry", loss, loss_of_pooled_keys},
    {"some queries", loss, loss_of_rows},
    {"strides, NaN around", gradients, loss_of_plan},
    {"lists with padding", gradients, loss_of_lists},
    {"softcap, keys elsewhere", gradients, loss_of_rules},
    {"several keys an entry", gradients, loss_of_pooled_keys},
    {"some queries", gradients, loss_of_rows},
};

}  // namespace

std::span<const SelectTrial> select_trials() { return kTrials; }

}  // namespace keyhole::judge
