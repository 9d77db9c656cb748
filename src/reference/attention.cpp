// src/reference/attention.cpp
// Outputs and gradients in fp64 from a pattern and tensors, straight from the definition: for every
// query the keys it may see, their scores, their weights, a weighted sum. No tiles, no plan, no
// tricks; what is not attended is never read. Sums with many terms use long double.
#include "reference/attention.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/dtype.h"
#include "base/int_math.h"
#include "base/parallel.h"
#include "base/random.h"
#include "base/weight_rule.h"
#include "reference/sparse_weights.h"

namespace keyhole {
namespace {

constexpr int64_t kManyKeys = 65536;
// When fp64 sums are not accurate enough for tests: with many terms, and for fp64 kernels, which
// need a reference of higher precision.
bool needs_long_sums(const TensorView& q, const TensorView& k) {
  return k.shape[2] > kManyKeys || q.dtype == DType::f64;
}
constexpr double kInfinity = std::numeric_limits<double>::infinity();

enum class Salt : uint64_t { q, k, v, dout };  // tensors are not disturbed alike

// One head of a tensor as fp64 rows, [length][columns].
class HeadRows {
 public:
  HeadRows(const TensorView& tensor, int64_t batch, int64_t head, const Disturbance& disturbance,
           Salt salt)
      : columns_(tensor.shape[3]), values_(size_t(tensor.shape[2] * tensor.shape[3])) {
    with_storage(tensor.dtype, [&](auto storage) {
      const auto* data = static_cast<const decltype(storage)*>(tensor.data);
      double* value = values_.data();
      for (int64_t i = 0; i < tensor.shape[2]; ++i) {
        const int64_t row =
            batch * tensor.strides[0] + head * tensor.strides[1] + i * tensor.strides[2];
        for (int64_t x = 0; x < columns_; ++x) *value++ = to_f32(data[row + x]);
      }
    });
    if (disturbance.relative == 0) return;
    Random random(disturbance.seed + uint64_t(salt) + 4 * uint64_t(batch * tensor.shape[1] + head));
    for (double& value : values_) {
      value *= 1 + disturbance.relative * (2 * random.uniform() - 1);
    }
  }
  const double* row(int64_t i) const { return values_.data() + i * columns_; }

 private:
  int64_t columns_;
  std::vector<double> values_;
};

struct Problem {
  Shape shape;
  int64_t kv_heads, head_dim, v_head_dim;
  WeightRule rule;
  const float* sink;  // [q_heads], or null
  int64_t sink_stride;
  int threads;
  Disturbance disturbance;

  int64_t kv_head_of(int64_t head) const { return head / (shape.heads / kv_heads); }
};

Problem describe(const TensorView& q, const TensorView& k, const TensorView& v,
                 const AttentionOptions& options, std::optional<int64_t> offset,
                 const Disturbance& disturbance) {
  for (const TensorView* tensor : {&q, &k, &v}) {
    KEYHOLE_CHECK(tensor->rank == 4, "reference: got a tensor ", to_string(*tensor),
                  "; expected 4 dimensions: [batch, heads, length, head_dim]");
  }
  KEYHOLE_CHECK(q.shape[0] == k.shape[0] && k.shape[0] == v.shape[0] && k.shape[1] == v.shape[1] &&
                    k.shape[2] == v.shape[2] && q.shape[3] == k.shape[3],
                "reference: the shapes of q ", to_string(q), ", k ", to_string(k), " and v ",
                to_string(v), " do not match");
  KEYHOLE_CHECK(q.shape[1] == 0 || (k.shape[1] > 0 && q.shape[1] % k.shape[1] == 0),
                "reference: q has ", q.shape[1], " heads and k has ", k.shape[1],
                "; the heads of q must be a multiple of those of k");
  const bool has_sink = options.sink.is_given();
  KEYHOLE_CHECK(!has_sink || (options.sink.rank == 1 && options.sink.dtype == DType::f32 &&
                              options.sink.shape[0] == q.shape[1]),
                "reference: sink is ", to_string(options.sink), "; expected f32 [", q.shape[1],
                "]");
  return {.shape = {q.shape[0], q.shape[1], q.shape[2], k.shape[2], offset},
          .kv_heads = k.shape[1],
          .head_dim = q.shape[3],
          .v_head_dim = v.shape[3],
          .rule = {.normalizer = options.normalizer,
                   .scale = options.scale.value_or(1 / std::sqrt(double(q.shape[3]))),
                   .softcap = options.softcap},
          .sink = has_sink ? static_cast<const float*>(options.sink.data) : nullptr,
          .sink_stride = has_sink ? options.sink.strides[0] : 0,
          .threads = options.threads,
          .disturbance = disturbance};
}

template <class Sum>
using Rule = SoftmaxRule<NaturalMath<Sum>>;

// The contribution of one query to each key it attends to. All vectors are parallel to `keys`.
template <class Sum>
struct Row {
  std::vector<int64_t> keys;
  std::vector<Sum> bent, score;  // of q . k, by the rule
  std::vector<Sum> weight;       // exp(score) / sum
  std::vector<Sum> slope;        // d weight / d score, lse held
  Sum sink_weight = 0, sink_slope = 0;
  Sum lse = 0;
};

template <class Sum>
Sum dot(const double* a, const double* b, int64_t size) {
  Sum sum = 0;
  for (int64_t x = 0; x < size; ++x) sum += Sum(a[x]) * Sum(b[x]);
  return sum;
}

template <class Sum>
void attend(const Problem& problem, const HeadPattern& pattern, int64_t head, int64_t query,
            const double* q, const HeadRows& k, Row<Sum>& row) {
  const auto rule = Rule<Sum>::of(problem.rule);
  row.keys.clear();
  row.bent.clear();
  row.score.clear();
  row.weight.clear();
  Sum top = -kInfinity;
  for (int64_t key = 0; key < problem.shape.k_len; ++key) {
    if (!pattern.allows(query, key)) continue;
    const Sum bent = rule.bend(dot<Sum>(q, k.row(key), problem.head_dim));
    const Sum score = rule.score(bent);
    if (score > top) top = score;
    row.keys.push_back(key);
    row.bent.push_back(bent);
    row.score.push_back(score);
  }
  const Sum sink = problem.sink ? Sum(problem.sink[head * problem.sink_stride]) : Sum(-kInfinity);
  if (!problem.rule.normalizer.is_plain_softmax()) {
    SparseWeights<Sum> sparse = sparse_weights(problem.rule.normalizer, row.score, sink);
    row.weight = std::move(sparse.weight);
    row.slope = std::move(sparse.slope);
    row.sink_weight = sparse.sink_weight;
    row.sink_slope = sparse.sink_slope;
    row.lse = sparse.lambda;
    return;
  }
  if (sink > top) top = sink;

  // Subtracting a base changes only the range. If it is not finite nothing is subtracted, so that
  // an attended NaN or infinity shows.
  const Sum base = std::isfinite(top) ? top : Sum(0);
  Sum sum = rule.weight(sink, base);
  for (const Sum score : row.score) sum += rule.weight(score, base);
  row.lse = base + std::log(sum);  // log(0) = -inf: the empty row
  for (const Sum score : row.score) {
    row.weight.push_back(sum == 0 ? Sum(0) : rule.weight(score, base) / sum);
  }
  row.sink_weight = sum == 0 ? Sum(0) : rule.weight(sink, base) / sum;
  row.slope = row.weight;
  row.sink_slope = row.sink_weight;
}

// A key that entmax or top_k leaves out: its value is not read.
template <class Sum>
bool is_left_out(const Problem& problem, Sum weight) {
  return weight == 0 && !problem.rule.normalizer.is_plain_softmax();
}

template <class Sum>
ReferenceOutput forward(const Problem& problem, const Pattern& pattern, const TensorView& q,
                        const TensorView& k, const TensorView& v,
                        const std::vector<int64_t>& queries) {
  const int64_t heads = problem.shape.heads, all_heads = problem.shape.batch * heads;
  ReferenceOutput output;
  output.lse.resize(size_t(all_heads) * queries.size());
  output.out.resize(output.lse.size() * size_t(problem.v_head_dim));
  parallel_for(all_heads, problem.threads, [&](int64_t item, int) {
    const int64_t batch = item / heads, head = item % heads, kv_head = problem.kv_head_of(head);
    const HeadPattern head_pattern = pattern.for_head(problem.shape, batch, head);
    const HeadRows q_rows(q, batch, head, problem.disturbance, Salt::q);
    const HeadRows k_rows(k, batch, kv_head, problem.disturbance, Salt::k);
    const HeadRows v_rows(v, batch, kv_head, problem.disturbance, Salt::v);
    Row<Sum> row;
    std::vector<Sum> out(size_t(problem.v_head_dim));
    for (size_t i = 0; i < queries.size(); ++i) {
      attend(problem, head_pattern, head, queries[i], q_rows.row(queries[i]), k_rows, row);
      std::fill(out.begin(), out.end(), Sum(0));
      for (size_t j = 0; j < row.keys.size(); ++j) {
        if (is_left_out(problem, row.weight[j])) continue;
        const double* value = v_rows.row(row.keys[j]);
        for (size_t x = 0; x < out.size(); ++x) out[x] += row.weight[j] * Sum(value[x]);
      }
      const size_t place = size_t(item) * queries.size() + i;
      std::copy(out.begin(), out.end(), output.out.data() + place * out.size());
      output.lse[place] = double(row.lse);
    }
  });
  return output;
}

// With p the weights, do the gradient of the output, p' the slopes, s' the rule's steepness, and
// delta = sum p'_j do . v_j / sum p'_j (for softmax do . o: there p' = p, and their sum is 1):
//   dv_j += p_j do          ds_j = p'_j (do . v_j - delta)        dsink -= p'_sink delta
//   dq   += ds_j s'_j k_j   dk_j += ds_j s'_j q
template <class Sum>
ReferenceGradients backward(const Problem& problem, const Pattern& pattern, const TensorView& dout,
                            const TensorView& q, const TensorView& k, const TensorView& v,
                            const std::vector<int64_t>& queries) {
  const auto rule = Rule<Sum>::of(problem.rule);
  const int64_t d = problem.head_dim, vd = problem.v_head_dim;
  const int64_t heads = problem.shape.heads, k_len = problem.shape.k_len;
  const int64_t all_kv_heads = problem.shape.batch * problem.kv_heads;
  ReferenceGradients grad;
  grad.dq.resize(size_t(problem.shape.batch * heads * d) * queries.size());
  std::vector<Sum> dk(size_t(all_kv_heads * k_len * d)), dv(size_t(all_kv_heads * k_len * vd));
  std::vector<Sum> dsink(size_t(problem.shape.batch * heads)), dalpha(dsink.size());
  // Heads that share keys add to the same gradients.
  parallel_for(all_kv_heads, problem.threads, [&](int64_t item, int) {
    const int64_t batch = item / problem.kv_heads, kv_head = item % problem.kv_heads;
    const HeadRows k_rows(k, batch, kv_head, problem.disturbance, Salt::k);
    const HeadRows v_rows(v, batch, kv_head, problem.disturbance, Salt::v);
    Sum* const dk_head = dk.data() + item * k_len * d;
    Sum* const dv_head = dv.data() + item * k_len * vd;
    Row<Sum> row;
    std::vector<Sum> dweight, dq(static_cast<size_t>(d));
    for (int64_t head = 0; head < heads; ++head) {
      if (problem.kv_head_of(head) != kv_head) continue;
      const HeadPattern head_pattern = pattern.for_head(problem.shape, batch, head);
      const HeadRows q_rows(q, batch, head, problem.disturbance, Salt::q);
      const HeadRows dout_rows(dout, batch, head, problem.disturbance, Salt::dout);
      const size_t place = size_t(batch * heads + head);
      double* dq_row = grad.dq.data() + place * queries.size() * size_t(d);
      for (size_t i = 0; i < queries.size(); ++i, dq_row += d) {
        const double* do_row = dout_rows.row(queries[i]);
        const double* q_row = q_rows.row(queries[i]);
        attend(problem, head_pattern, head, queries[i], q_row, k_rows, row);
        if (row.keys.empty()) continue;  // nothing depends on this row, whatever dout holds there

        Sum delta = 0, slopes = row.sink_slope;
        dweight.clear();
        for (size_t j = 0; j < row.keys.size(); ++j) {
          const bool is_out = is_left_out(problem, row.weight[j]);
          dweight.push_back(is_out ? Sum(0) : dot<Sum>(do_row, v_rows.row(row.keys[j]), vd));
          delta += row.slope[j] * dweight[j];
          slopes += row.slope[j];
        }
        if (!problem.rule.normalizer.is_plain_softmax()) {
          if (slopes == 0) continue;  // every score is -inf
          delta /= slopes;
        }
        dalpha[place] += alpha_gradient(problem.rule.normalizer.alpha, row.weight, row.sink_weight,
                                        dweight, delta);
        std::fill(dq.begin(), dq.end(), Sum(0));
        for (size_t j = 0; j < row.keys.size(); ++j) {
          if (is_left_out(problem, row.weight[j])) continue;
          const int64_t key = row.keys[j];
          const Sum dscore = row.slope[j] * (dweight[j] - delta);
          const Sum dproduct = dscore * rule.steepness(row.bent[j]);
          const double* k_row = k_rows.row(key);
          for (int64_t x = 0; x < d; ++x) dq[size_t(x)] += dproduct * k_row[x];
          for (int64_t x = 0; x < d; ++x) dk_head[key * d + x] += dproduct * q_row[x];
          for (int64_t x = 0; x < vd; ++x) dv_head[key * vd + x] += row.weight[j] * do_row[x];
        }
        if (problem.sink) dsink[place] -= row.sink_slope * delta;
        std::copy(dq.begin(), dq.end(), dq_row);
      }
    }
  });
  grad.dk.assign(dk.begin(), dk.end());
  grad.dv.assign(dv.begin(), dv.end());
  grad.dsink.resize(problem.sink ? size_t(heads) : 0);
  for (size_t i = 0; i < dsink.size(); ++i) {
    if (problem.sink) grad.dsink[i % size_t(heads)] += double(dsink[i]);
    grad.dalpha += double(dalpha[i]);
  }
  return grad;
}

std::vector<int64_t> all_queries(const TensorView& q) {
  std::vector<int64_t> queries(q.rank == 4 ? size_t(q.shape[2]) : 0);
  std::iota(queries.begin(), queries.end(), 0);
  return queries;
}

void check_queries(const Problem& problem, const std::vector<int64_t>& queries) {
  for (const int64_t query : queries) {
    KEYHOLE_CHECK(query >= 0 && query < problem.shape.q_len, "reference: asked for query ", query,
                  "; q has queries 0 to ", problem.shape.q_len - 1);
  }
}

}  // namespace

ReferenceOutput reference_forward_rows(const Pattern& pattern, const TensorView& q,
                                       const TensorView& k, const TensorView& v,
                                       const std::vector<int64_t>& queries,
                                       const AttentionOptions& options,
                                       std::optional<int64_t> offset,
                                       const Disturbance& disturbance) {
  const Problem problem = describe(q, k, v, options, offset, disturbance);
  check_queries(problem, queries);
  return needs_long_sums(q, k) ? forward<long double>(problem, pattern, q, k, v, queries)
                               : forward<double>(problem, pattern, q, k, v, queries);
}

ReferenceOutput reference_forward(const Pattern& pattern, const TensorView& q, const TensorView& k,
                                  const TensorView& v, const AttentionOptions& options,
                                  std::optional<int64_t> offset) {
  return reference_forward_rows(pattern, q, k, v, all_queries(q), options, offset);
}

ReferenceGradients reference_backward_rows(const Pattern& pattern, const TensorView& dout,
                                           const TensorView& q, const TensorView& k,
                                           const TensorView& v, const std::vector<int64_t>& queries,
                                           const AttentionOptions& options,
                                           std::optional<int64_t> offset,
                                           const Disturbance& disturbance) {
  const Problem problem = describe(q, k, v, options, offset, disturbance);
  check_queries(problem, queries);
  KEYHOLE_CHECK(dout.rank == 4 && dout.shape[0] == q.shape[0] && dout.shape[1] == q.shape[1] &&
                    dout.shape[2] == q.shape[2] && dout.shape[3] == v.shape[3],
                "reference: dout is ", to_string(dout), "; expected [", q.shape[0], ", ",
                q.shape[1], ", ", q.shape[2], ", ", v.shape[3], "]");
  return needs_long_sums(q, k) ? backward<long double>(problem, pattern, dout, q, k, v, queries)
                               : backward<double>(problem, pattern, dout, q, k, v, queries);
}

ReferenceGradients reference_backward(const Pattern& pattern, const TensorView& dout,
                                      const TensorView& q, const TensorView& k, const TensorView& v,
                                      const AttentionOptions& options,
                                      std::optional<int64_t> offset) {
  return reference_backward_rows(pattern, dout, q, k, v, all_queries(q), options, offset);
}

ReferenceRow reference_row(const Pattern& pattern, const TensorView& q, const TensorView& k,
                           int64_t batch, int64_t head, int64_t query,
                           const AttentionOptions& options, std::optional<int64_t> offset) {
  const Problem problem = describe(q, k, k, options, offset, {});
  check_queries(problem, {query});
  const HeadRows q_rows(q, batch, head, {}, Salt::q);
  const HeadRows k_rows(k, batch, problem.kv_head_of(head), {}, Salt::k);
  Row<double> row;
  attend(problem, pattern.for_head(problem.shape, batch, head), head, query, q_rows.row(query),
         k_rows, row);
  return {std::move(row.keys), std::move(row.score), std::move(row.weight), row.lse};
}

}  // namespace keyhole
