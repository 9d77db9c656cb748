// tests/support/gpu/reference.cu
// With p the weights, o the output and do its gradient:
//   dv_j += p_j do          ds_j = p_j (do . v_j - do . o)         dsink -= p_sink (do . o)
//   dq   += ds_j s' k_j     dk_j += ds_j s' q                      s' = scale * d softcap / d score
#include <cmath>

#include "support/gpu/pairs.cuh"
#include "support/gpu/reference.h"

namespace keyhole::test {
namespace {

// What the launches hand on. Per pair (weights and gradients of scores that are not attended are
// neither written nor read) and per row.
struct Scratch {
  double *score, *weight, *dscore;  // pairs; dscore holds do . v at first
  double *sink_weight, *delta;      // rows
};

__device__ double dot(const TensorView& a, int64_t a_place, const TensorView& b, int64_t b_place,
                      int64_t size) {
  double sum = 0;
  for (int64_t x = 0; x < size; ++x) {
    sum += load(a, a_place + x * a.strides[3]) * load(b, b_place + x * b.strides[3]);
  }
  return sum;
}

__global__ void score_pairs(int64_t num_pairs, ReferenceInputs in, Scratch scratch) {
  for (int64_t pair = first_index(); pair < num_pairs; pair += index_step()) {
    if (!is_allowed(in, pair)) continue;
    const int64_t key = pair % in.k_len;
    const RowPlace row(in, pair / in.k_len);
    double score =
        in.scale * dot(in.q, row.in_queries(in.q), in.k, row.in_keys(in.k, key), in.head_dim);
    if (in.softcap > 0) score = in.softcap * tanh(score / in.softcap);
    scratch.score[pair] = score;
    scratch.dscore[pair] =
        dot(in.dout, row.in_queries(in.dout), in.v, row.in_keys(in.v, key), in.v_head_dim);
  }
}

__global__ void weigh_rows(int64_t num_rows, ReferenceInputs in, Scratch scratch, double* lse) {
  for (int64_t row = first_index(); row < num_rows; row += index_step()) {
    const RowPlace place(in, row);
    const double sink = in.sink.rank != 0 ? sink_of(in, place.head) : -INFINITY;
    double top = sink;
    for_each_key(in, row, [&](int64_t, int64_t pair) {
      if (scratch.score[pair] > top) top = scratch.score[pair];
    });
    // Subtracting a base changes nothing but the range; where it is not finite, nothing is
    // subtracted and the definition takes its course (an attended NaN or infinity shows).
    const double base = std::isfinite(top) ? top : 0;
    double sum = exp(sink - base);
    for_each_key(in, row, [&](int64_t, int64_t pair) { sum += exp(scratch.score[pair] - base); });
    lse[row] = base + log(sum);  // log(0) = -inf: the empty row
    double delta = 0;
    for_each_key(in, row, [&](int64_t, int64_t pair) {
      const double weight = sum == 0 ? 0 : exp(scratch.score[pair] - base) / sum;
      scratch.weight[pair] = weight;
      delta += weight * scratch.dscore[pair];
    });
    scratch.sink_weight[row] = sum == 0 ? 0 : exp(sink - base) / sum;
    scratch.delta[row] = delta;
  }
}

__global__ void sum_out(int64_t count, ReferenceInputs in, Scratch scratch, double* out) {
  for (int64_t at = first_index(); at < count; at += index_step()) {
    const int64_t row = at / in.v_head_dim, x = at % in.v_head_dim;
    const RowPlace place(in, row);
    double sum = 0;
    for_each_key(in, row, [&](int64_t key, int64_t pair) {
      sum += scratch.weight[pair] * load(in.v, place.in_keys(in.v, key) + x * in.v.strides[3]);
    });
    out[at] = sum;
  }
}

__global__ void finish_score_gradients(int64_t num_pairs, ReferenceInputs in, Scratch scratch) {
  for (int64_t pair = first_index(); pair < num_pairs; pair += index_step()) {
    if (!is_allowed(in, pair)) continue;
    double slope = in.scale;
    if (in.softcap > 0) {
      const double capped = scratch.score[pair] / in.softcap;
      slope *= 1 - capped * capped;
    }
    scratch.dscore[pair] =
        scratch.weight[pair] * (scratch.dscore[pair] - scratch.delta[pair / in.k_len]) * slope;
  }
}

__global__ void sum_dq(int64_t count, ReferenceInputs in, Scratch scratch, double* dq) {
  for (int64_t at = first_index(); at < count; at += index_step()) {
    const int64_t row = at / in.head_dim, x = at % in.head_dim;
    const RowPlace place(in, row);
    double sum = 0;
    for_each_key(in, row, [&](int64_t key, int64_t pair) {
      sum += scratch.dscore[pair] * load(in.k, place.in_keys(in.k, key) + x * in.k.strides[3]);
    });
    dq[at] = sum;
  }
}

// dk from the gradients of scores and q, dv from the weights and dout.
__global__ void sum_over_queries(int64_t count, ReferenceInputs in, const double* of_pairs,
                                 TensorView of_queries, int64_t columns, double* to) {
  for (int64_t at = first_index(); at < count; at += index_step()) {
    const int64_t x = at % columns;
    double sum = 0;
    for_each_query(in, at / columns, [&](int64_t row, int64_t pair) {
      const int64_t place = RowPlace(in, row).in_queries(of_queries);
      sum += of_pairs[pair] * load(of_queries, place + x * of_queries.strides[3]);
    });
    to[at] = sum;
  }
}

// Rows that see nothing give nothing: whatever dout holds there, nothing depends on them.
__global__ void sum_dsink(int64_t heads, ReferenceInputs in, Scratch scratch, double* dsink) {
  for (int64_t head = first_index(); head < heads; head += index_step()) {
    double sum = 0;
    for (int64_t batch = 0; batch < in.batch; ++batch) {
      for (int64_t query = 0; query < in.q_len; ++query) {
        const int64_t row = (batch * in.heads + head) * in.q_len + query;
        bool sees_a_key = false;
        for_each_key(in, row, [&](int64_t, int64_t) { sees_a_key = true; });
        if (sees_a_key) sum -= scratch.sink_weight[row] * scratch.delta[row];
      }
    }
    dsink[head] = sum;
  }
}

}  // namespace

GpuReference reference_on_gpu(const ReferenceInputs& in) {
  const int64_t rows = in.num_rows(), pairs = in.num_pairs(), keys = in.num_keys();
  const GpuArray<double> score(pairs), weight(pairs), dscore(pairs), sink_weight(rows), delta(rows);
  const Scratch scratch{score.get(), weight.get(), dscore.get(), sink_weight.get(), delta.get()};
  GpuReference result;
  result.out = GpuArray<double>(rows * in.v_head_dim);
  result.lse = GpuArray<double>(rows);
  result.dq = GpuArray<double>(rows * in.head_dim);
  result.dk = GpuArray<double>(keys * in.head_dim);
  result.dv = GpuArray<double>(keys * in.v_head_dim);
  launch_over(pairs, score_pairs, in, scratch);
  launch_over(rows, weigh_rows, in, scratch, result.lse.get());
  launch_over(result.out.count(), sum_out, in, scratch, result.out.get());
  launch_over(pairs, finish_score_gradients, in, scratch);
  launch_over(result.dq.count(), sum_dq, in, scratch, result.dq.get());
  launch_over(result.dk.count(), sum_over_queries, in, scratch.dscore, in.q, in.head_dim,
              result.dk.get());
  launch_over(result.dv.count(), sum_over_queries, in, scratch.weight, in.dout, in.v_head_dim,
              result.dv.get());
  if (in.sink.is_given()) {
    result.dsink = GpuArray<double>(in.heads);
    launch_over(in.heads, sum_dsink, in, scratch, result.dsink.get());
  }
  return result;
}

}  // namespace keyhole::test
