// tests/support/gpu/bounds.cu
// The same walk as tolerance.cpp, one thread for each pair, row or element.
#include <cmath>

#include "base/check.h"
#include "support/gpu/bounds.h"
#include "support/gpu/pairs.cuh"

namespace keyhole::test {
namespace {

// One pair in the precision of a kernel, and what rounding may do to it.
struct Pair {
  float weight;  // the score at first
  float slope, dscore;
  double product;  // scale * sum |q k|
  Rounding::PairError error;
};
struct Row {
  float sink_weight;
  float delta;
  double weight_error;
  int64_t keys;
  Rounding::RowError error;
};

struct Element {
  const double* want;
  double *bound, *plain;

  __device__ void set(int64_t at, DType dtype, float plain_value, double bound_value) const {
    plain[at] = rounded_to(dtype, double(plain_value));
    bound[at] = bound_value;
  }
};

__global__ void bound_scores(int64_t num_pairs, ReferenceInputs in, Rounding rules, Pair* pairs) {
  for (int64_t at = first_index(); at < num_pairs; at += index_step()) {
    if (!is_allowed(in, at)) continue;
    const RowPlace row(in, at / in.k_len);
    const int64_t q = row.in_queries(in.q), k = row.in_keys(in.k, at % in.k_len);
    float sum = 0;
    double size = 0;
    for (int64_t x = 0; x < in.head_dim; ++x) {
      const double a = load(in.q, q + x * in.q.strides[3]), b = load(in.k, k + x * in.k.strides[3]);
      sum += float(a) * float(b);
      size += std::abs(a * b);
    }
    const PlainScore<float> plain = rules.plain_score(sum);
    pairs[at].weight = plain.score;
    pairs[at].slope = plain.slope;
    pairs[at].product = size * std::abs(rules.scale);
  }
}

__global__ void bound_weights(int64_t num_rows, ReferenceInputs in, Rounding rules, Pair* pairs,
                              Row* rows, Element lse) {
  for (int64_t at = first_index(); at < num_rows; at += index_step()) {
    Row row{};
    const float sink = rules.has_sink ? float(sink_of(in, RowPlace(in, at).head)) : -INFINITY;
    float top = sink;
    double largest_product = 0;
    for_each_key(in, at, [&](int64_t, int64_t pair) {
      if (pairs[pair].weight > top) top = pairs[pair].weight;
      if (pairs[pair].product > largest_product) largest_product = pairs[pair].product;
      ++row.keys;
    });
    const float base = std::isfinite(top) ? top : 0.f;
    float total = rules.has_sink ? std::exp(sink - base) : 0.f;
    row.sink_weight = total;
    for_each_key(in, at, [&](int64_t, int64_t pair) {
      pairs[pair].weight = std::exp(pairs[pair].weight - base);
      total += pairs[pair].weight;
    });
    for_each_key(in, at, [&](int64_t, int64_t pair) {
      pairs[pair].weight = total == 0 ? 0.f : pairs[pair].weight / total;
    });
    row.sink_weight = total == 0 ? 0.f : row.sink_weight / total;
    row.weight_error = rules.weight_error(largest_product, row.keys);
    lse.set(at, DType::f32, base + std::log(total),
            rules.lse_bound(lse.want[at], row.weight_error));
    rows[at] = row;
  }
}

__global__ void bound_out(int64_t count, ReferenceInputs in, Rounding rules, const Pair* pairs,
                          const Row* rows, Element out) {
  for (int64_t at = first_index(); at < count; at += index_step()) {
    const int64_t row = at / in.v_head_dim, x = at % in.v_head_dim;
    const RowPlace place(in, row);
    float sum = 0;
    double size = 0, lost = 0;
    for_each_key(in, row, [&](int64_t key, int64_t pair) {
      const double v = load(in.v, place.in_keys(in.v, key) + x * in.v.strides[3]);
      sum += rules.factor(pairs[pair].weight) * float(v);
      size += rules.out_size(double(pairs[pair].weight), std::abs(v));
      lost += rules.out_lost(std::abs(v));
    });
    out.set(at, rules.dtype, sum,
            rules.out_bound(out.want[at], rows[row].weight_error, size, lost));
  }
}

// delta = dout . out, with the out of the plain loop.
__global__ void sum_deltas(int64_t num_rows, ReferenceInputs in, Rounding rules, Element out,
                           Element lse, Row* rows) {
  for (int64_t at = first_index(); at < num_rows; at += index_step()) {
    const int64_t place = RowPlace(in, at).in_queries(in.dout);
    float delta = 0;
    double delta_size = 0, out_error = 0;
    for (int64_t x = 0; x < in.v_head_dim; ++x) {
      const double dout = load(in.dout, place + x * in.dout.strides[3]);
      const int64_t e = at * in.v_head_dim + x;
      delta += float(dout) * float(out.plain[e]);
      delta_size += std::abs(dout * out.plain[e]);
      out_error += std::abs(dout) * out.bound[e];
    }
    rows[at].delta = delta;
    rows[at].error = rules.row_error(rows[at].weight_error, lse.bound[at], delta_size, out_error);
  }
}

__global__ void bound_pairs(int64_t num_pairs, ReferenceInputs in, Rounding rules, const Row* rows,
                            Pair* pairs) {
  for (int64_t at = first_index(); at < num_pairs; at += index_step()) {
    if (!is_allowed(in, at)) continue;
    const Row& row = rows[at / in.k_len];
    const RowPlace place(in, at / in.k_len);
    const int64_t dout = place.in_queries(in.dout), v = place.in_keys(in.v, at % in.k_len);
    float dweight = 0;
    double dweight_size = 0;
    for (int64_t x = 0; x < in.v_head_dim; ++x) {
      const double a = load(in.dout, dout + x * in.dout.strides[3]);
      const double b = load(in.v, v + x * in.v.strides[3]);
      dweight += float(a) * float(b);
      dweight_size += std::abs(a * b);
    }
    Pair& pair = pairs[at];
    pair.dscore = pair.weight * (dweight - row.delta) * pair.slope;
    pair.error =
        rules.pair_error(row.error, double(pair.weight), double(pair.slope), double(pair.dscore),
                         double(dweight), dweight_size, double(row.delta));
  }
}

__global__ void bound_dq(int64_t count, ReferenceInputs in, Rounding rules, const Pair* pairs,
                         Element dq) {
  for (int64_t at = first_index(); at < count; at += index_step()) {
    const int64_t row = at / in.head_dim, x = at % in.head_dim;
    const RowPlace place(in, row);
    float sum = 0;
    double bound = rules.storing_gradient_error(dq.want[at]);
    for_each_key(in, row, [&](int64_t key, int64_t pair) {
      const double k = load(in.k, place.in_keys(in.k, key) + x * in.k.strides[3]);
      sum += rules.factor(pairs[pair].dscore) * float(k);
      bound += pairs[pair].error.dscore * std::abs(k);
    });
    dq.set(at, rules.dtype, sum, bound);
  }
}

__global__ void bound_dk(int64_t count, ReferenceInputs in, Rounding rules, const Pair* pairs,
                         Element dk) {
  for (int64_t at = first_index(); at < count; at += index_step()) {
    const int64_t x = at % in.head_dim;
    float sum = 0;
    double bound = rules.storing_gradient_error(dk.want[at]);
    for_each_query(in, at / in.head_dim, [&](int64_t row, int64_t pair) {
      const double q = load(in.q, RowPlace(in, row).in_queries(in.q) + x * in.q.strides[3]);
      sum += rules.factor(pairs[pair].dscore) * float(q);
      bound += pairs[pair].error.dscore * std::abs(q);
    });
    dk.set(at, rules.dtype, sum, bound);
  }
}

__global__ void bound_dv(int64_t count, ReferenceInputs in, Rounding rules, const Pair* pairs,
                         Element dv) {
  for (int64_t at = first_index(); at < count; at += index_step()) {
    const int64_t x = at % in.v_head_dim;
    float sum = 0;
    double bound = rules.storing_gradient_error(dv.want[at]);
    for_each_query(in, at / in.v_head_dim, [&](int64_t row, int64_t pair) {
      const double dout =
          load(in.dout, RowPlace(in, row).in_queries(in.dout) + x * in.dout.strides[3]);
      sum += rules.factor(pairs[pair].weight) * float(dout);
      bound += pairs[pair].error.weight * std::abs(dout);
    });
    dv.set(at, rules.dtype, sum, bound);
  }
}

__global__ void bound_dsink(int64_t heads, ReferenceInputs in, Rounding rules, const Row* rows,
                            Element dsink) {
  for (int64_t head = first_index(); head < heads; head += index_step()) {
    float sum = 0;
    double bound = storing_error(DType::f32, dsink.want[head]);
    for (int64_t batch = 0; batch < in.batch; ++batch) {
      for (int64_t query = 0; query < in.q_len; ++query) {
        const Row& row = rows[(batch * in.heads + head) * in.q_len + query];
        if (row.keys == 0) continue;
        sum -= row.sink_weight * row.delta;
        bound += rules.sink_error(row.error, double(row.sink_weight));
      }
    }
    dsink.set(head, DType::f32, sum, bound);
  }
}

Element room_for(const GpuArray<double>& want, GpuBounds::Of& to) {
  to.bound = GpuArray<double>(want.count());
  to.plain = GpuArray<double>(want.count());
  return {want.get(), to.bound.get(), to.plain.get()};
}

}  // namespace

GpuBounds bounds_on_gpu(const ReferenceInputs& in, const Rounding& rules,
                        const GpuReference& want) {
  KEYHOLE_ASSERT(rules.dtype != DType::f64, "no kernel of a GPU reads f64");
  const int64_t num_rows = in.num_rows(), num_pairs = in.num_pairs();
  const GpuArray<Pair> pairs(num_pairs);
  const GpuArray<Row> rows(num_rows);
  GpuBounds bounds;
  const Element out = room_for(want.out, bounds.out), lse = room_for(want.lse, bounds.lse);
  const Element dq = room_for(want.dq, bounds.dq), dk = room_for(want.dk, bounds.dk);
  const Element dv = room_for(want.dv, bounds.dv), dsink = room_for(want.dsink, bounds.dsink);
  launch_over(num_pairs, bound_scores, in, rules, pairs.get());
  launch_over(num_rows, bound_weights, in, rules, pairs.get(), rows.get(), lse);
  launch_over(want.out.count(), bound_out, in, rules, pairs.get(), rows.get(), out);
  launch_over(num_rows, sum_deltas, in, rules, out, lse, rows.get());
  launch_over(num_pairs, bound_pairs, in, rules, rows.get(), pairs.get());
  launch_over(want.dq.count(), bound_dq, in, rules, pairs.get(), dq);
  launch_over(want.dk.count(), bound_dk, in, rules, pairs.get(), dk);
  launch_over(want.dv.count(), bound_dv, in, rules, pairs.get(), dv);
  launch_over(want.dsink.count(), bound_dsink, in, rules, rows.get(), dsink);
  return bounds;
}

}  // namespace keyhole::test
