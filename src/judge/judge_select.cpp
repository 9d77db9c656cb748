// src/judge/judge_select.cpp
#include "judge/judge_select.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/dtype.h"
#include "select/requests.h"
#include "select/selection.h"

namespace keyhole::judge {
namespace {

// Memory that no kernel may write is unchanged.
void expect_intact(Finding& finding, const std::string& damage) {
  if (damage.empty()) return;
  finding.error = std::numeric_limits<double>::infinity();
  finding.complaint = damage;
}

// The sum of the sizes of all terms of a score: what rounding errors are proportional to.
class SizesOfScores {
 public:
  explicit SizesOfScores(const SelectProblem& p)
      : c_(p.c), q_(p.q.values()), k_(p.k.values()), w_(p.w.values()), scale_(p.k_scale.values()) {}

  double at(int64_t b, int64_t g, int64_t t, int64_t s) const {
    const int64_t entry = (b * c_.groups + g) * c_.entries + s;
    double size = 0;
    for (int64_t j = g * c_.heads; j < (g + 1) * c_.heads; ++j) {
      const int64_t query = (b * c_.groups * c_.heads + j) * c_.q_len + t;
      const double *a = q_.data() + query * c_.head_dim, *k = k_.data() + entry * c_.head_dim;
      double dot = 0;
      for (int64_t x = 0; x < c_.head_dim; ++x) dot += std::abs(a[x] * k[x]);
      size += c_.has_w ? std::abs(w_[size_t(query)]) * dot : dot;
    }
    return c_.has_scale ? std::abs(scale_[size_t(entry)]) * size : size;
  }

 private:
  const SelectCase& c_;
  std::vector<double> q_, k_, w_, scale_;
};

}  // namespace

Finding judge_scores(const SelectProblem& p, double product_error) {
  const SelectCase& c = p.c;
  const std::vector<double> want = reference_index_scores(p.indexer(), p.visible());
  const double unit = rounding_unit(p.scores.view().dtype);
  const double share = unit * (4 + double(c.head_dim + c.heads)) + product_error;
  const SizesOfScores sizes(p);
  Finding finding;
  for (int64_t i = 0; i < p.scores.num_elements(); ++i) {
    const int64_t s = i % c.entries, t = i / c.entries % c.q_len;
    const int64_t g = i / c.entries / c.q_len % c.groups, b = i / c.entries / c.q_len / c.groups;
    const double size = sizes.at(b, g, t, s);
    // What NaN or infinity enters, and what is not visible, is as the definition has it.
    const double allowed = std::isfinite(want[size_t(i)]) && std::isfinite(size) ? share * size : 0;
    expect(finding, p.scores.get(i), want[size_t(i)], allowed + 1e-30, [&] {
      return say("the score of batch entry ", b, ", group ", g, ", query ", t, ", entry ", s);
    });
  }
  expect_intact(finding, p.damage());
  return finding;
}

Finding judge_lists(const SelectProblem& p, const TensorView& scores, bool takes_short_rows) {
  const ReferenceSelection want =
      reference_top_k(scores, p.c.k, p.visible(), p.always(), takes_short_rows);
  Finding finding;
  const auto expect_number = [&](int64_t row, int32_t got, int32_t wanted, auto&&... what) {
    if (got == wanted) return;
    if (finding.error++ > 0) return;
    const int64_t q_len = p.c.q_len, groups = p.c.groups;
    finding.complaint =
        say(what..., " of batch entry ", row / q_len / groups, ", group ", row / q_len % groups,
            ", query ", row % q_len, " is ", got, ", the reference says ", wanted);
  };
  for (int64_t row = 0; row < int64_t(want.rows.size()); ++row) {
    std::vector<int32_t> list = want.rows[size_t(row)];
    const auto count = int32_t(list.size());
    list.resize(size_t(p.c.k + p.c.extra_columns), -1);
    const std::vector<int32_t> got = p.indices.row(row);
    for (size_t x = 0; x < list.size(); ++x) expect_number(row, got[x], list[x], "place ", x);
    if (p.c.has_counts) expect_number(row, p.counts.row(row)[0], count, "the count");
  }
  expect_intact(finding, p.damage());
  return finding;
}

namespace {

// Numbers are around 1; exp of scores that many terms enter is what costs digits. Scores grow with
// the root of head_dim, and so does what their rounding does to exp.
double sum_error(const LossCase& c) {
  const bool is_wide = c.dtype == DType::f64 && c.target_dtype == DType::f64;
  const double head_dim = double(std::max(c.head_dim, c.target_dim));
  return (is_wide ? 1e-11 : 3e-5) * std::max(1.0, std::sqrt(head_dim / 64));
}

// at_least: allowed also where all numbers are small.
void compare(Finding& finding, const char* name, const PoisonedTensor& got,
             const std::vector<double>& want, double share, double at_least = 0) {
  double size = 1e-3;
  for (const double x : want) size = std::isfinite(x) ? std::max(size, std::abs(x)) : size;
  for (int64_t i = 0; i < got.num_elements(); ++i) {
    expect(finding, got.get(i), want[size_t(i)], std::max(at_least, share * size),
           [&] { return say(name, "[", i, "]"); });
  }
  expect_intact(finding, got.damage());
}

}  // namespace

Finding judge_loss(const LossProblem& p, const ReferenceIndexLoss& want) {
  Finding finding;
  compare(finding, "loss", p.loss, want.loss, sum_error(p.c));
  compare(finding, "stats", p.stats, want.stats, sum_error(p.c));
  expect_intact(finding, p.damage_of_inputs());
  return finding;
}

Finding judge_gradients(const LossProblem& p, const ReferenceIndexLoss& want,
                        bool rounds_gradients) {
  const double stored = sum_error(p.c) + (rounds_gradients ? 4 : 2) * rounding_unit(p.c.dtype);
  // A list of one key has a weight of exactly 1 and no gradients. But a kernel computes that weight
  // from a score and from a statistic in which the score may have been added up in another order.
  const double of_a_score = sum_error(p.c) * std::sqrt(double(p.c.head_dim));
  Finding finding;
  compare(finding, "dq", p.dq, want.dq, stored, of_a_score);
  compare(finding, "dk", p.dk, want.dk, stored, of_a_score);
  if (p.c.has_w) compare(finding, "dw", p.dw, want.dw, sum_error(p.c), of_a_score);
  expect_intact(finding, p.damage_of_inputs());
  return finding;
}

namespace {

IndexerView on_device(IndexerView indexer, const Device& device) {
  for (TensorView* view : {&indexer.q, &indexer.k, &indexer.w, &indexer.k_scale}) {
    view->device = device;
  }
  return indexer;
}

// A kernel of select_keys scores as that of index_scores with the rest of its name.
const SelectKernel& scores_of(const SelectKernel& kernel) {
  std::string name = kernel.name;
  const std::string both = to_string(SelectOperation::select);
  name.replace(name.find(both), both.size(), to_string(SelectOperation::scores));
  const auto found = std::ranges::find(select_table(), name, &SelectKernel::name);
  KEYHOLE_ASSERT(found != select_table().end(), kernel.name, ": ", name, " is not in the table");
  return *found;
}

}  // namespace

// Asked of the tensors on the host: their copies on a GPU lie the same.
std::string refusal_of(const SelectKernel& kernel, const SelectCase& c) {
  const SelectProblem p(c);
  if (kernel.operation == SelectOperation::top_k) {
    TensorView scores = p.given_scores.view();
    scores.device = c.device;
    return refusal(kernel, request_of(scores, p.options()));
  }
  return refusal(kernel,
                 request_of(kernel.operation, on_device(p.indexer(), c.device), c.k, "auto"));
}

std::string refusal_of(const SelectKernel& kernel, const LossCase& c) {
  const LossProblem p(c);
  return refusal(
      kernel, request_of(kernel.operation, on_device(p.indexer(), c.device), p.target(), "auto"));
}

Finding run_and_judge(const SelectKernel& kernel, const SelectCase& c) {
  SelectProblem p(c);
  const SelectTensors tensors(p);
  if (kernel.operation == SelectOperation::top_k) {
    run_top_k(kernel, tensors.given_scores, tensors.selection, p.options());
    tensors.finish();
    return judge_lists(p, p.given_scores.view(), /*takes_short_rows=*/false);
  }
  const bool is_select = kernel.operation == SelectOperation::select;
  run_index_scores(is_select ? scores_of(kernel) : kernel, tensors.indexer, tensors.scores,
                   p.options());
  if (is_select) run_select_keys(kernel, tensors.indexer, tensors.selection, p.options());
  tensors.finish();
  return is_select ? judge_lists(p, p.scores.view(), /*takes_short_rows=*/true)
                   : judge_scores(p, kernel.product_error);
}

Finding run_and_judge(const SelectKernel& kernel, const LossCase& c) {
  LossProblem p(c);
  const auto want = reference_index_loss(p.indexer(), p.target(), p.listed(), p.dloss.values());
  const bool is_forward = kernel.operation == SelectOperation::loss;
  if (!is_forward) p.stats.fill([&](int64_t i) { return want.stats[size_t(i)]; });
  const LossTensors tensors(p);
  if (is_forward) {
    run_index_loss_forward(kernel, tensors.indexer, tensors.target, tensors.lists, tensors.loss,
                           tensors.stats, tensors.options);
  } else {
    run_index_loss_backward(kernel, tensors.dloss, tensors.indexer, tensors.target, tensors.lists,
                            tensors.stats, tensors.gradients, tensors.options);
  }
  tensors.finish();
  return is_forward ? judge_loss(p, want) : judge_gradients(p, want, kernel.rounds_gradients);
}

}  // namespace keyhole::judge
