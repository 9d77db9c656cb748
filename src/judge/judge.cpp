// src/judge/judge.cpp
#include "judge/judge.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <sstream>

#include "base/check.h"
#include "base/dtype.h"
#include "base/parallel.h"
#include "base/random.h"
#include "reference/attention.h"

namespace keyhole::judge {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Infinite for anything and a NaN; nothing for two NaNs, which is what the reference asked for.
double difference(double got, double want) {
  if (std::isnan(want) && std::isnan(got)) return 0;
  if (got == want) return 0;
  const double distance = std::abs(got - want);
  return std::isnan(distance) ? kInfinity : distance;
}

// [batch, heads, rows, columns] of any result: lse has one column, dsink one row and column a head.
TensorView as_rows(TensorView view) {
  if (view.rank == 1) {
    view.shape[1] = view.shape[0], view.strides[1] = view.strides[0];
    view.shape[0] = view.shape[2] = view.shape[3] = 1;
  } else if (view.rank == 3) {
    view.shape[3] = 1;
  }
  view.rank = 4;
  return view;
}

double element(const TensorView& rows, int64_t head, int64_t row, int64_t column) {
  const int64_t b = head / rows.shape[1], h = head % rows.shape[1];
  return with_storage(rows.dtype, [&](auto storage) -> double {
    const auto* data = static_cast<const decltype(storage)*>(rows.data);
    return to_f32(data[b * rows.strides[0] + h * rows.strides[1] + row * rows.strides[2] + column]);
  });
}

std::string place_of(const char* name, const TensorView& rows, int64_t head, int64_t row,
                     int64_t column) {
  return say(name, " of batch entry ", head / rows.shape[1], ", head ", head % rows.shape[1],
             ", row ", row, ", column ", column);
}

std::vector<int64_t> all_rows(int64_t length) {
  std::vector<int64_t> all(static_cast<size_t>(length));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// The worst of what look(head, finding) finds, over all heads of all batch entries.
template <class Look>
Finding worst_of_heads(const TensorView& rows, int threads, const Look& look) {
  std::vector<Finding> findings(size_t(rows.shape[0] * rows.shape[1]));
  parallel_for(int64_t(findings.size()), threads,
               [&](int64_t head, int) { look(head, findings[size_t(head)]); });
  Finding worst;
  for (const Finding& finding : findings) worst.take(finding);
  return worst;
}

// A result beside what it should be, and what the reference gives for disturbed inputs.
struct Comparison {
  const char* name;
  TensorView got;
  std::vector<double> want;
  std::vector<const std::vector<double>*> rough;
  double of_statistic;
};

double largest_of(const std::vector<double>& numbers) {
  double largest = 0;
  for (const double number : numbers) {
    if (std::isfinite(number)) largest = std::max(largest, std::abs(number));
  }
  return largest;
}

// What rounding lse or lambda, its logarithm and its exponential does to all weights of a row
// alike, where disturbed inputs average out. Of gradients it is a share of the largest of all: one
// that is 0 because its terms cancel has what they leave.
double rounding_of_statistic(const KernelEntry& kernel, const Answer& answer,
                             std::initializer_list<const std::vector<double>*> wants) {
  double largest = 0;
  for (const std::vector<double>* want : wants) largest = std::max(largest, largest_of(*want));
  const double roundings = kernel.operation == Operation::forward ? 8 : 64;
  return roundings * rounding_unit(answer.lse.dtype) * largest;
}

// Equal terms all round the same way: a sum of n of them is off by up to n / 4 roundings.
double rounding_of_equal_terms(const Answer& answer, int64_t terms,
                               const std::vector<double>& want) {
  if (!answer.has_equal_terms) return 0;
  return rounding_unit(answer.lse.dtype) * largest_of(want) * double(terms) / 4;
}

// Keys may gain or lose their weight by rounding, and single rows jump there. So a row is allowed
// what it moved by itself, besides what all but a tenth of the numbers move by.
Finding compare(const Comparison& result, const std::vector<int64_t>& queries, int threads) {
  const TensorView got = as_rows(result.got);
  const std::vector<int64_t> rows = result.got.rank == 1 ? all_rows(got.shape[2]) : queries;
  const int64_t heads = got.shape[0] * got.shape[1], columns = got.shape[3];
  KEYHOLE_ASSERT(int64_t(result.want.size()) == heads * int64_t(rows.size()) * columns,
                 "check: ", result.name, " has ", heads * int64_t(rows.size()) * columns,
                 " numbers, the reference ", result.want.size());
  double largest = 0;
  std::vector<double> row_cost(size_t(heads) * rows.size()), costs;
  for (size_t i = 0; i < result.want.size(); ++i) {
    if (!std::isfinite(result.want[i])) continue;
    largest = std::max(largest, std::abs(result.want[i]));
    double cost = 0;
    for (const std::vector<double>* rough : result.rough) {
      cost = std::max(cost, difference((*rough)[i], result.want[i]));
    }
    double& of_row = row_cost[i / size_t(columns)];
    of_row = std::max(of_row, cost);
    if (cost > 0) costs.push_back(cost);
  }
  double usual = 0;
  if (!costs.empty()) {
    const auto place = costs.begin() + ptrdiff_t(costs.size()) * 9 / 10;
    std::nth_element(costs.begin(), place, costs.end());
    usual = *place;
  }
  const double rounded = 2 * rounding_unit(got.dtype) * largest + result.of_statistic;
  return worst_of_heads(got, threads, [&](int64_t head, Finding& finding) {
    for (size_t i = 0; i < rows.size(); ++i) {
      const size_t place = size_t(head) * rows.size() + i;
      // Twice the largest of a hundred thousand, which is about 3.5 times the usual.
      const double allowed = 7 * usual + 2 * row_cost[place] + rounded + 1e-30;
      for (int64_t x = 0; x < columns; ++x) {
        expect(finding, element(got, head, rows[i], x),
               result.want[place * size_t(columns) + size_t(x)], allowed,
               [&] { return place_of(result.name, got, head, rows[i], x); });
      }
    }
  });
}

// How far the numbers a kernel works with are from exact, as a share of each of them.
double working_precision(const KernelEntry& kernel, const Answer& answer) {
  const bool is_backward = kernel.operation == Operation::backward;
  // A sum of n terms is off by about sqrt(n) roundings; the factors, the exponential and, in the
  // backward pass, a stored lse of several units cost a few more.
  const int64_t group = answer.q.shape[1] / std::max<int64_t>(1, answer.k.shape[1]);
  const int64_t longest_sum = std::max({answer.q.shape[3], answer.v.shape[3], answer.k.shape[2],
                                        is_backward ? group * answer.q.shape[2] : 0});
  double roundings = (is_backward ? 8 : 4) + std::sqrt(double(longest_sum));
  // x ** (1 / (alpha - 1)) multiplies the rounding of x.
  const double alpha = answer.options.normalizer.alpha;
  if (alpha > 1) roundings += 4 / std::max(alpha - 1, 0.02);
  if (kernel.dtype == DType::f64) return roundings * rounding_unit(DType::f64);
  // The backward pass of softmax is handed an `out` that was rounded to the dtype, and uses it.
  const bool uses_out = is_backward && kernel.weights == Weights::softmax;
  const bool is_rounded = uses_out || kernel.rounds_weights;
  return std::max(roundings * rounding_unit(DType::f32),
                  is_rounded ? 2 * rounding_unit(kernel.dtype) : 0);
}

// What the reference gives for disturbed inputs; to either side where keys may gain or lose weight.
template <class Reference>
auto disturbed(const KernelEntry& kernel, const Answer& answer, const Reference& reference) {
  const double relative = working_precision(kernel, answer);
  std::vector<decltype(reference(Disturbance{}))> rough;
  rough.push_back(reference(Disturbance{relative, answer.seed}));
  if (kernel.weights == Weights::sparse) {
    rough.push_back(reference(Disturbance{-relative, answer.seed}));
  }
  return rough;
}

template <class Numbers>
std::vector<const std::vector<double>*> each(const std::vector<Numbers>& rough,
                                             std::vector<double> Numbers::* field) {
  std::vector<const std::vector<double>*> fields;
  for (const Numbers& numbers : rough) fields.push_back(&(numbers.*field));
  return fields;
}

}  // namespace

void Finding::take(const Finding& other) {
  if (other.ratio() > ratio() || allowed == 0) *this = other;
}

std::vector<int64_t> rows_to_check(int64_t length, int64_t all_up_to, int64_t count,
                                   uint64_t seed) {
  if (length <= std::max(all_up_to, count)) return all_rows(length);
  std::set<int64_t> chosen = {0, 1, length - 2, length - 1};
  for (Random random(seed); int64_t(chosen.size()) < count;) chosen.insert(random.below(length));
  return {chosen.begin(), chosen.end()};
}

Finding judge_forward(const KernelEntry& kernel, const Answer& answer,
                      const std::vector<int64_t>& queries) {
  const auto reference = [&](const Disturbance& disturbance) {
    return reference_forward_rows(answer.pattern, answer.q, answer.k, answer.v, queries,
                                  answer.options, answer.offset, disturbance);
  };
  ReferenceOutput want = reference({});
  const std::vector<ReferenceOutput> rough = disturbed(kernel, answer, reference);
  using Output = ReferenceOutput;
  const double shared = rounding_of_statistic(kernel, answer, {&want.out, &want.lse});
  // Of out alone: lse is what tells the number of keys.
  const double of_sum = rounding_of_equal_terms(answer, answer.k.shape[2], want.out);
  const int threads = answer.options.threads;
  Finding worst =
      compare({"out", answer.out, std::move(want.out), each(rough, &Output::out), shared + of_sum},
              queries, threads);
  worst.take(compare({"lse", answer.lse, std::move(want.lse), each(rough, &Output::lse), shared},
                     queries, threads));
  return worst;
}

Finding judge_backward(const KernelEntry& kernel, const Answer& answer,
                       const std::vector<int64_t>& queries) {
  const auto reference = [&](const Disturbance& disturbance) {
    return reference_backward_rows(answer.pattern, answer.dout, answer.q, answer.k, answer.v,
                                   queries, answer.options, answer.offset, disturbance);
  };
  using Grads = ReferenceGradients;
  Grads want = reference({});
  const std::vector<Grads> rough = disturbed(kernel, answer, reference);
  const double shared = rounding_of_statistic(kernel, answer, {&want.dq, &want.dk, &want.dv});
  const int threads = answer.options.threads;
  const std::vector<int64_t> keys = all_rows(answer.k.shape[2]);
  const int64_t rows_of_key = answer.q.shape[1] / answer.k.shape[1] * answer.q.shape[2];
  const double of_sum = rounding_of_equal_terms(answer, rows_of_key, want.dv);
  Finding worst = compare({"dq", answer.dq, std::move(want.dq), each(rough, &Grads::dq), shared},
                          queries, threads);
  worst.take(compare({"dk", answer.dk, std::move(want.dk), each(rough, &Grads::dk), shared}, keys,
                     threads));
  worst.take(
      compare({"dv", answer.dv, std::move(want.dv), each(rough, &Grads::dv), shared + of_sum}, keys,
              threads));
  if (answer.dsink.is_given()) {
    worst.take(compare(
        {"dsink", answer.dsink, std::move(want.dsink), each(rough, &Grads::dsink), shared}, {}, 1));
  }
  return worst;
}

Finding judge_written(const char* name, const TensorView& tensor, int threads) {
  return worst_of_heads(tensor, threads, [&](int64_t head, Finding& finding) {
    for (int64_t row = 0; row < tensor.shape[2]; ++row) {
      for (int64_t x = 0; x < tensor.shape[3]; ++x) {
        const double value = element(tensor, head, row, x);
        if (std::isfinite(value)) continue;
        expect(finding, value, 0, 1, [&] { return place_of(name, tensor, head, row, x); });
      }
    }
  });
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
  text << where << " is " << got << ", the reference says " << want << " (allowed difference "
       << finding.allowed << ")";
  finding.complaint = text.str();
}

}  // namespace keyhole::judge
