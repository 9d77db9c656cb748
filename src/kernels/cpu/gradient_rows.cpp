// src/kernels/cpu/gradient_rows.cpp
#include "kernels/cpu/gradient_rows.h"

#include <type_traits>

namespace keyhole::cpu {

// For the case that every query and every key is visited exactly once.
template <class Storage>
bool GradientRows<Storage>::one_part_has_all() const {
  if (p.num_parts() != 1) return false;
  if (p.plan.tiles.empty()) return true;
  const TileView& view = p.plan.tiles[0];
  int64_t queries = 0, keys = 0;
  for (int32_t c = 0; c < view.classes; ++c) {
    queries += view.residues[c].num_q;
    keys += view.residues[c].num_k;
  }
  return queries == p.q_len && keys == p.k_len;
}

template <class Storage>
void GradientRows<Storage>::begin_wave(int64_t first, int64_t last) {
  first_unit = first;
  num_units = last - first;
  find_deltas();
  if (args.dsink.is_given()) find_sink_terms();
  if (!adds_up_) return;
  const int64_t queries = num_heads() * p.q_len, keys = num_units * p.k_len;
  std::fill_n(dq_sum_.reserve(queries * q_cols), queries * q_cols, T(0));
  std::fill_n(dk_sum_.reserve(keys * q_cols), keys * q_cols, T(0));
  std::fill_n(dv_sum_.reserve(keys * v_cols), keys * v_cols, T(0));
}

template <class Storage>
void GradientRows<Storage>::find_deltas() {
  lse_.reserve(num_heads() * p.q_len);
  delta_.reserve(num_heads() * p.q_len);
  for_each_block(num_heads(), p.q_len, [&](int64_t i, int64_t begin, int64_t count, int) {
    const Head h = head(i);
    const auto dout = rows_of<const Storage>(args.dout, h.batch, h.head);
    const auto out = rows_of<const Storage>(args.out, h.batch, h.head);
    const auto lse_given = rows_of<const T>(args.lse, h.batch, h.head);
    T *lse = lse_.data() + i * p.q_len, *delta = delta_.data() + i * p.q_len;
    simd.row_dots(dout[begin], dout.stride, out[begin], out.stride, count, p.v_head_dim,
                  delta + begin);
    for (int64_t query = begin; query < begin + count; ++query) {
      // A query that attends to nothing contributes nothing, whatever dout holds there.
      const T given = *lse_given[query];
      const bool is_empty = given == -kInfinity || (!std::isfinite(delta[query]) &&
                                                    attends_to_nothing(p.plan, h.index(p), query));
      // Any NaN but this one might be lost in rounding to 16 bits.
      const T in_base_2 = std::isnan(given) ? kNaN : T(given * T(kLog2E));
      lse[query] = is_empty ? kInfinity : in_base_2;
      if (is_empty) delta[query] = 0;
    }
  });
}

// The sink is a key with a given score and a value of 0: dsink = -p_sink * delta.
template <class Storage>
void GradientRows<Storage>::find_sink_terms() {
  const auto rule = SoftmaxRule<Base2Math<double>>::of(p.rule);
  parallel_for(num_heads(), p.threads, [&](int64_t i, int) {
    const Head h = head(i);
    const double sink = p.sink_of(h.head) * kLog2E;
    double sum = 0;
    for (int64_t query = 0; query < p.q_len; ++query) {
      const double weight = rule.weight(sink, double(lse(i, query)));
      if (weight != 0) sum += weight * double(delta(i, query));
    }
    sink_terms_[size_t(h.index(p))] = -sum;
  });
}

template <class Storage>
void GradientRows<Storage>::store_dsink() const {
  if (!args.dsink.is_given()) return;
  for (int64_t h = 0; h < p.heads; ++h) {
    double sum = 0;
    for (int64_t b = 0; b < p.batch; ++b) sum += sink_terms_[size_t(b * p.heads + h)];
    static_cast<float*>(args.dsink.data)[h * args.dsink.strides[0]] = float(sum);
  }
}

template <class Storage>
void GradientRows<Storage>::finish_wave() const {
  if (!adds_up_) return;
  for_each_block(num_heads(), p.q_len, [&](int64_t i, int64_t begin, int64_t count, int) {
    finish_queries(head(i), {begin, 1, count}, dq_sum(i, begin));
  });
  for_each_block(num_units, p.k_len, [&](int64_t unit, int64_t begin, int64_t count, int) {
    finish_keys(kv_head(unit), {begin, 1, count}, dk_sum(unit, begin), dv_sum(unit, begin));
  });
}

namespace {

// Stores rows of a gradient; calls redo(row) for rows that are not finite.
template <class Storage, class T, class Redo>
void store_gradients(const Primitives<Storage>& simd, const T* from, int64_t from_cols,
                     Rows<Storage> to, int64_t cols, const SpacedRows& rows, Redo redo) {
  const auto store = [&](int64_t r, int64_t count) {
    return simd.store_rows(from + r * from_cols, from_cols, count, cols, nullptr, to[rows[r]],
                           to.stride * rows.stride);
  };
  if (store(0, rows.count)) [[likely]]
    return;
  for (int64_t r = 0; r < rows.count; ++r) {
    if (!store(r, 1)) redo(rows[r]);
  }
}

}  // namespace

template <class Storage>
void GradientRows<Storage>::finish_queries(const Head& h, const SpacedRows& queries,
                                           const T* dq) const {
  store_gradients(
      simd, dq, q_cols, rows_of<Storage>(args.dq, h.batch, h.head), p.head_dim, queries,
      [&](int64_t query) { exact_query_gradient<Storage>(args, h.batch, h.head, query); });
}

template <class Storage>
void GradientRows<Storage>::finish_keys(const Head& h, const SpacedRows& keys, const T* dk,
                                        const T* dv) const {
  const auto redo = [&](int64_t key) {  // recomputes its dk and dv
    exact_key_gradient<Storage>(args, h.batch, h.kv_head, key);
  };
  store_gradients(simd, dk, q_cols, rows_of<Storage>(args.dk, h.batch, h.kv_head), p.head_dim, keys,
                  redo);
  store_gradients(simd, dv, v_cols, rows_of<Storage>(args.dv, h.batch, h.kv_head), p.v_head_dim,
                  keys, redo);
}

template class GradientRows<float>;
template class GradientRows<double>;
template class GradientRows<Half>;
template class GradientRows<BFloat16>;

}  // namespace keyhole::cpu
