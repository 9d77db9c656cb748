// cli/bench/check.cpp
// Takes a case with its plan and tensors, says whether the kernel's answer is the reference's.
//
// Differences are held against what rounding may do. Inputs are standard normal, so that a sum of
// p * v is of order 1 whatever the length: fp32 accumulation costs an absolute kAccumulated at
// most, and storing the result costs rounding units of its dtype.
//
// With entmax and top_k a key may gain or lose its weight by rounding, and a result may jump there.
// So the reference is asked twice more, with keys that are disturbed to either side: what a number
// moves by is allowed as well.
#include "cli/bench/check.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "base/check.h"
#include "base/dtype.h"
#include "base/parallel.h"
#include "cli/bench/choice.h"
#include "reference/attention.h"

namespace keyhole::bench {
namespace {

constexpr double kAccumulated = 2e-5;
// Inputs are nearly normal, and none is larger than this (inputs.cpp).
constexpr double kLargestInput = 3.5;

double accumulation_error(DType dtype) { return dtype == DType::f64 ? 1e-11 : kAccumulated; }

// The keys of one head in fp64, each off by up to this share: ten times what rounding does to a
// score.
Tensor disturbed_keys(const Case& c, const TensorView& keys, int sign) {
  const double most = c.dtype == DType::f64 ? 1e-14 : 1e-5;
  Tensor moved(DType::f64, {1, 1, c.k_len, c.head_dim});
  auto* to = static_cast<double*>(moved.view().data);
  uint64_t x = 2463534242;
  for (int64_t row = 0; row < c.k_len; ++row) {
    for (int64_t column = 0; column < c.head_dim; ++column) {
      x = x * 6364136223846793005u + 1442695040888963407u;
      const double share = double(int64_t(x) >> 11) * 0x1p-52;  // -1 to 1
      *to++ = read(keys, 0, row, column) * (1 + sign * most * share);
    }
  }
  return moved;
}

// How far each number of `want` is from those of two disturbed references, the farther of both.
std::vector<double> spread(const std::vector<double>& want, const std::vector<double>& one,
                           const std::vector<double>& other) {
  std::vector<double> far(want.size());
  for (size_t i = 0; i < far.size(); ++i) {
    far[i] = std::max(std::abs(one[i] - want[i]), std::abs(other[i] - want[i]));
    if (!(far[i] >= 0)) far[i] = 0;  // equal infinities
  }
  return far;
}

// The first and the last row and others between, always the same ones.
std::vector<int64_t> choose_rows(const Case& c, const CheckEffort& effort) {
  std::vector<int64_t> rows;
  if (c.q_len <= effort.all_rows_up_to) {
    for (int64_t row = 0; row < c.q_len; ++row) rows.push_back(row);
    return rows;
  }
  const int64_t wanted =
      std::clamp(effort.sampled_keys / (c.k_len * c.heads), effort.min_rows, effort.max_rows);
  std::set<int64_t> chosen = {0, c.q_len - 1};
  for (uint64_t x = 1; int64_t(chosen.size()) < std::min(wanted, c.q_len);) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    chosen.insert(int64_t((x >> 33) % uint64_t(c.q_len)));
  }
  return {chosen.begin(), chosen.end()};
}

// Rows of one head, copied into a tensor of their own, on the host.
Tensor gather_rows(const TensorView& tensor, int64_t head, const std::vector<int64_t>& rows) {
  Tensor gathered(tensor.dtype, {1, 1, int64_t(rows.size()), tensor.shape[3]});
  const int64_t row_bytes = tensor.shape[3] * bytes_of(tensor.dtype);
  const auto* from = static_cast<const std::byte*>(head_of(tensor, head).data);
  auto* to = static_cast<std::byte*>(gathered.view().data);
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::byte* row = from + rows[i] * tensor.strides[2] * bytes_of(tensor.dtype);
    std::copy(row, row + row_bytes, to + int64_t(i) * row_bytes);
  }
  return gathered;
}

// The pattern of one head as the chosen rows see it: query i of the small problem is rows[i].
Pattern pattern_of_rows(const Case& c, int64_t head, const std::vector<int64_t>& rows) {
  const HeadPattern whole = c.pattern.for_head(c.shape(), 0, head);
  return lambda([whole, rows](Position q, Position k) { return whole.allows(rows[size_t(q)], k); });
}

// Some rows of one head: the unit of work of a check, one per thread and head.
struct Slice {
  int64_t head;
  std::vector<int64_t> rows;
};

std::vector<Slice> slices(const Case& c, const std::vector<int64_t>& rows, int64_t per_head) {
  std::vector<Slice> all;
  const int64_t count = int64_t(rows.size());
  for (int64_t head = 0; head < c.heads; ++head) {
    for (int64_t part = 0; part < per_head; ++part) {
      const auto begin = rows.begin() + count * part / per_head;
      const auto end = rows.begin() + count * (part + 1) / per_head;
      if (begin != end) all.push_back({head, {begin, end}});
    }
  }
  return all;
}

// Keeps the worst difference of all and what to say about it.
class Judge {
 public:
  void compare(double got, double want, double allowed, const char* what, int64_t head,
               int64_t row) {
    if (got == want) return;  // covers equal infinities
    double share = std::abs(got - want) / allowed;
    if (!(share >= 0)) share = INFINITY;  // NaN where a number belongs
    if (share <= worst_) return;
    worst_ = share;
    if (share > 1) {
      complaint_ = say(what, " of row ", row, ", head ", head, " is ", got, ", the reference says ",
                       want, " (allowed difference ", allowed, ")");
    }
  }
  void merge(const Judge& other) {
    if (other.worst_ > worst_) *this = other;
  }
  double worst() const { return worst_; }
  const std::string& complaint() const { return complaint_; }

 private:
  double worst_ = 0;
  std::string complaint_;
};

Judge judge_forward(const Case& c, const Inputs& inputs, const Slice& slice,
                    const AttentionOptions& options, bool rounds_weights) {
  const int64_t kv_head = slice.head / (c.heads / c.kv_heads);
  const Tensor q = gather_rows(inputs.q.host(), slice.head, slice.rows);
  const TensorView keys = head_of(inputs.k.host(), kv_head);
  const auto reference = [&](const TensorView& k) {
    return reference_forward(pattern_of_rows(c, slice.head, slice.rows), q, k,
                             head_of(inputs.v.host(), kv_head), options, /*offset=*/0);
  };
  const ReferenceOutput want = reference(keys);
  std::vector<double> out_spread(want.out.size()), lse_spread(want.lse.size());
  if (c.is_sparse()) {
    const ReferenceOutput one = reference(disturbed_keys(c, keys, 1));
    const ReferenceOutput other = reference(disturbed_keys(c, keys, -1));
    out_spread = spread(want.out, one.out, other.out);
    lse_spread = spread(want.lse, one.lse, other.lse);
  }
  const double unit = rounding_unit(c.dtype), accumulated = accumulation_error(c.dtype);
  // Weights that were rounded, each by a unit at most, and that sum to 1.
  const double of_weights = rounds_weights ? unit * kLargestInput : 0;
  Judge judge;
  for (size_t i = 0; i < slice.rows.size(); ++i) {
    const int64_t row = slice.rows[i];
    const double lse = want.lse[i];
    judge.compare(read(inputs.lse.host(), slice.head, row, 0), lse,
                  accumulated * std::max(1.0, std::abs(lse)) + lse_spread[i], "lse", slice.head,
                  row);
    for (int64_t column = 0; column < c.head_dim; ++column) {
      const size_t at = i * size_t(c.head_dim) + size_t(column);
      const double value = want.out[at];
      judge.compare(read(inputs.out.host(), slice.head, row, column), value,
                    2 * unit * std::abs(value) + accumulated + of_weights + out_spread[at], "out",
                    slice.head, row);
    }
  }
  return judge;
}

// A row that no sample meets must at least have been written, with numbers.
Judge judge_all_written(const TensorView& tensor, const char* what, int threads) {
  std::vector<Judge> judges(size_t(tensor.shape[1]));
  parallel_for(tensor.shape[1], threads, [&](int64_t head, int) {
    for (int64_t row = 0; row < tensor.shape[2]; ++row) {
      for (int64_t column = 0; column < tensor.shape[3]; ++column) {
        const double value = read(tensor, head, row, column);
        if (!std::isfinite(value)) judges[size_t(head)].compare(value, 0, 1, what, head, row);
      }
    }
  });
  Judge judge;
  for (const Judge& other : judges) judge.merge(other);
  return judge;
}

double largest(const std::vector<double>& values) {
  double most = 0;
  for (double value : values) most = std::max(most, std::abs(value));
  return most;
}

// Every element of one head against a whole gradient, which is of one size: sums of many terms of
// both signs, so that an element may be small by cancellation and no more exact for it.
void judge_gradient(Judge& judge, const Case& c, const TensorView& got, int64_t head,
                    const std::vector<int64_t>& rows, const std::vector<double>& want,
                    const std::vector<double>& spreads, const char* what) {
  const double size = std::max(1e-3, largest(want));
  const double allowed = (8 * rounding_unit(c.dtype) + accumulation_error(c.dtype)) * size;
  for (size_t i = 0; i < rows.size(); ++i) {
    for (int64_t column = 0; column < c.head_dim; ++column) {
      const size_t at = i * size_t(c.head_dim) + size_t(column);
      judge.compare(read(got, head, rows[i], column), want[at],
                    allowed + (spreads.empty() ? 0 : spreads[at]), what, head, rows[i]);
    }
  }
}

void add_to(std::vector<double>& sum, const std::vector<double>& terms) {
  if (sum.empty()) sum.resize(terms.size());
  for (size_t i = 0; i < terms.size(); ++i) sum[i] += terms[i];
}

Judge judge_backward(const Case& c, const Inputs& inputs, const std::vector<Slice>& parts,
                     const AttentionOptions& options, int threads) {
  std::vector<ReferenceGradients> wants(parts.size()), spreads(parts.size());
  parallel_for(int64_t(parts.size()), threads, [&](int64_t item, int) {
    const Slice& slice = parts[size_t(item)];
    const int64_t kv_head = slice.head / (c.heads / c.kv_heads);
    const TensorView k = head_of(inputs.k.host(), kv_head);
    const auto reference = [&](const TensorView& keys) {
      return reference_backward(pattern_of_rows(c, slice.head, slice.rows),
                                gather_rows(inputs.dout.host(), slice.head, slice.rows),
                                gather_rows(inputs.q.host(), slice.head, slice.rows), keys,
                                head_of(inputs.v.host(), kv_head), options, /*offset=*/0);
    };
    const ReferenceGradients& want = wants[size_t(item)] = reference(k);
    if (!c.is_sparse()) return;
    const ReferenceGradients one = reference(disturbed_keys(c, k, 1));
    const ReferenceGradients other = reference(disturbed_keys(c, k, -1));
    spreads[size_t(item)].dq = spread(want.dq, one.dq, other.dq);
    spreads[size_t(item)].dk = spread(want.dk, one.dk, other.dk);
    spreads[size_t(item)].dv = spread(want.dv, one.dv, other.dv);
  });

  Judge judge;
  std::vector<std::vector<double>> dk(static_cast<size_t>(c.kv_heads)), dv(dk.size());
  std::vector<std::vector<double>> dk_spread(dk.size()), dv_spread(dk.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t kv_head = size_t(parts[i].head / (c.heads / c.kv_heads));
    judge_gradient(judge, c, inputs.dq.host(), parts[i].head, parts[i].rows, wants[i].dq,
                   spreads[i].dq, "dq");
    add_to(dk[kv_head], wants[i].dk);
    add_to(dv[kv_head], wants[i].dv);
    add_to(dk_spread[kv_head], spreads[i].dk);
    add_to(dv_spread[kv_head], spreads[i].dv);
  }
  std::vector<int64_t> keys(static_cast<size_t>(c.k_len));
  for (size_t key = 0; key < keys.size(); ++key) keys[key] = int64_t(key);
  std::vector<Judge> judges(dk.size());
  parallel_for(c.kv_heads, threads, [&](int64_t head, int) {
    Judge& mine = judges[size_t(head)];
    const size_t i = size_t(head);
    judge_gradient(mine, c, inputs.dk.host(), head, keys, dk[i], dk_spread[i], "dk");
    judge_gradient(mine, c, inputs.dv.host(), head, keys, dv[i], dv_spread[i], "dv");
  });
  for (const Judge& other : judges) judge.merge(other);
  return judge;
}

// Zero but in the chosen rows.
void keep_rows(const Tensor& tensor, const std::vector<int64_t>& rows) {
  const TensorView& view = tensor.host();
  const int64_t row_bytes = view.shape[3] * bytes_of(view.dtype);
  std::vector<bool> is_chosen(static_cast<size_t>(view.shape[2]));
  for (int64_t row : rows) is_chosen[size_t(row)] = true;
  auto* data = static_cast<std::byte*>(view.data);
  for (int64_t i = 0; i < view.shape[1] * view.shape[2]; ++i) {
    if (!is_chosen[size_t(i % view.shape[2])]) {
      std::fill_n(data + i * row_bytes, row_bytes, std::byte{0});
    }
  }
  tensor.send();
}

}  // namespace

CheckResult check(const Case& c, const Lists& lists, Inputs& inputs, const CheckEffort& effort,
                  const AttentionOptions& options) {
  const int threads = options.threads;
  const bool rounds_weights =
      choice_for(c, Operation::forward, lists, options).kernel->rounds_weights;
  const std::vector<int64_t> rows = choose_rows(c, effort);
  const int64_t workers = threads > 0 ? threads : max_threads();
  const std::vector<Slice> parts = slices(c, rows, (workers + c.heads - 1) / c.heads);

  inputs.out.fill_nan();
  inputs.lse.fill_nan();
  inputs.run_forward(lists, options);
  inputs.out.bring_back();
  inputs.lse.bring_back();
  Judge judge = judge_all_written(inputs.out.host(), "out", threads);
  std::vector<Judge> judges(parts.size());
  parallel_for(int64_t(parts.size()), threads, [&](int64_t item, int) {
    judges[size_t(item)] = judge_forward(c, inputs, parts[size_t(item)], options, rounds_weights);
  });
  for (const Judge& other : judges) judge.merge(other);

  if (c.operation == Operation::backward) {
    keep_rows(inputs.dout, rows);
    for (Tensor* gradient : {&inputs.dq, &inputs.dk, &inputs.dv}) gradient->fill_nan();
    inputs.run_backward(lists, options);
    for (const Tensor* gradient : {&inputs.dq, &inputs.dk, &inputs.dv}) gradient->bring_back();
    judge.merge(judge_all_written(inputs.dq.host(), "dq", threads));
    judge.merge(judge_backward(c, inputs, parts, options, threads));
    inputs.dout.fill_normal(4);
  }
  return {.is_passed = judge.worst() <= 1,
          .rows = int64_t(rows.size()),
          .is_sampled = int64_t(rows.size()) < c.q_len,
          .worst = judge.worst(),
          .complaint = judge.complaint()};
}

}  // namespace keyhole::bench
