// src/kernels/cpu/gradient_rows.cpp
#include "kernels/cpu/gradient_rows.h"

#include <type_traits>

namespace keyhole::cpu {

// Every query and every key passes by exactly once.
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
  Scratch<T> rows(p.threads * 2 * v_cols);
  for_each_row(num_heads(), p.q_len, [&](int64_t i, int64_t query, int thread) {
    const Head h = head(i);
    const Storage* dout_row = rows_of<const Storage>(args.dout, h.batch, h.head)[query];
    const Storage* out_row = rows_of<const Storage>(args.out, h.batch, h.head)[query];
    T* converted = rows.data() + thread * 2 * v_cols;
    const T *dout = converted, *out = converted + v_cols;
    if (std::is_same_v<Storage, T> && v_cols == p.v_head_dim) {  // as they lie
      dout = reinterpret_cast<const T*>(dout_row);
      out = reinterpret_cast<const T*>(out_row);
    } else {
      simd.load_rows(dout_row, 0, 1, p.v_head_dim, v_cols, T(1), converted, v_cols);
      simd.load_rows(out_row, 0, 1, p.v_head_dim, v_cols, T(1), converted + v_cols, v_cols);
    }
    const T lse = *rows_of<const T>(args.lse, h.batch, h.head)[query];
    const T delta = simd.dot(dout, out, v_cols);
    // A query that attends to nothing gives nothing, whatever dout holds there.
    const bool is_empty = lse == -kInfinity ||
                          (!std::isfinite(delta) && attends_to_nothing(p.plan, h.index(p), query));
    lse_[i * p.q_len + query] = is_empty ? kInfinity : T(lse * T(kLog2E));
    delta_[i * p.q_len + query] = is_empty ? T(0) : delta;
  });
}

// The sink is a key whose score is given and whose value is 0: dsink = -p_sink * delta.
template <class Storage>
void GradientRows<Storage>::find_sink_terms() {
  parallel_for(num_heads(), p.threads, [&](int64_t i, int) {
    const Head h = head(i);
    double sum = 0;
    for (int64_t query = 0; query < p.q_len; ++query) {
      const double weight = std::exp2(p.sink_of(h.head) * kLog2E - double(lse(i, query)));
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
  for_each_row(num_heads(), p.q_len, [&](int64_t i, int64_t query, int) {
    finish_query(head(i), query, dq_sum(i, query));
  });
  for_each_row(num_units, p.k_len, [&](int64_t unit, int64_t key, int) {
    finish_key(kv_head(unit), key, dk_sum(unit, key), dv_sum(unit, key));
  });
}

template <class Storage>
void GradientRows<Storage>::finish_query(const Head& h, int64_t query, const T* dq) const {
  if (!simd.store_row(dq, T(1), p.head_dim, rows_of<Storage>(args.dq, h.batch, h.head)[query]))
      [[unlikely]] {
    exact_query_gradient<Storage>(args, h.batch, h.head, query);
  }
}

template <class Storage>
void GradientRows<Storage>::finish_key(const Head& h, int64_t key, const T* dk, const T* dv) const {
  const bool dk_is_finite =
      simd.store_row(dk, T(1), p.head_dim, rows_of<Storage>(args.dk, h.batch, h.kv_head)[key]);
  const bool dv_is_finite =
      simd.store_row(dv, T(1), p.v_head_dim, rows_of<Storage>(args.dv, h.batch, h.kv_head)[key]);
  if (!dk_is_finite || !dv_is_finite) [[unlikely]] {
    exact_key_gradient<Storage>(args, h.batch, h.kv_head, key);
  }
}

template class GradientRows<float>;
template class GradientRows<double>;
template class GradientRows<Half>;
template class GradientRows<BFloat16>;

}  // namespace keyhole::cpu
