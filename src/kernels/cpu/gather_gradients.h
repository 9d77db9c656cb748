// src/kernels/cpu/gather_gradients.h
// The backward pass over a part of key lists: dq by query from its list of keys, dk and dv by key
// from the list of queries that attend to it. Probabilities are computed twice. Nothing is
// scattered, so nothing depends on the order of threads.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/cpu/gradient_rows.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/tile_walk.h"

namespace keyhole::cpu {

template <class Storage>
class GatherGradients {
  using T = typename Traits<Storage>::Compute;

 public:
  explicit GatherGradients(const GradientRows<Storage>& rows)
      : rows_(rows), p_(rows.p), simd_(rows.simd), work_(size_t(p_.threads)) {
    if (p_.plan.gathers.empty()) return;
    for (Work& work : work_) {
      for (Scratch<T>* strip : {&work.p, &work.ds, &work.lse, &work.delta}) {
        strip->reserve(kStripKeys);
      }
      work.dqk.reserve(rows_.q_cols);
      work.dv.reserve(rows_.v_cols);
    }
  }

  int64_t bytes_per_unit() const {
    if (p_.plan.gathers.empty()) return 0;
    return (p_.k_len + p_.group * p_.q_len) * (rows_.q_cols + rows_.v_cols) * int64_t(sizeof(T));
  }

  void follow(const GatherView& view) {
    pack();
    rows_.for_each_row(rows_.num_heads(), p_.q_len, [&](int64_t i, int64_t query, int thread) {
      const int32_t group = view.group_of_head(rows_.head(i).index(p_));
      query_gradient(keys_of(view, group, query), i, query, work_[size_t(thread)]);
    });
    rows_.for_each_row(rows_.num_units, p_.k_len, [&](int64_t unit, int64_t key, int thread) {
      key_gradient(view, unit, key, work_[size_t(thread)]);
    });
  }

 private:
  struct Work {
    Scratch<T> p, ds, lse, delta;  // [kStripKeys]
    Scratch<T> dqk, dv;            // sums of the current row
  };

  T* q_row(int64_t i, int64_t query) const {
    return q_.data() + (i * p_.q_len + query) * rows_.q_cols;
  }
  T* dout_row(int64_t i, int64_t query) const {
    return dout_.data() + (i * p_.q_len + query) * rows_.v_cols;
  }
  T* key_row(int64_t unit, int64_t key) const {
    return keys_.data() + (unit * p_.k_len + key) * rows_.q_cols;
  }
  T* value_row(int64_t unit, int64_t key) const {
    return values_.data() + (unit * p_.k_len + key) * rows_.v_cols;
  }

  void pack() {
    keys_.reserve(rows_.num_units * p_.k_len * rows_.q_cols);
    values_.reserve(rows_.num_units * p_.k_len * rows_.v_cols);
    q_.reserve(rows_.num_heads() * p_.q_len * rows_.q_cols);
    dout_.reserve(rows_.num_heads() * p_.q_len * rows_.v_cols);
    const auto load = [&](const TensorView& from, const Head& h, int64_t head, int64_t row,
                          int64_t cols, int64_t padded, T* to) {
      simd_.load_rows(rows_of<const Storage>(from, h.batch, head)[row], 0, 1, cols, padded, T(1),
                      to, padded);
    };
    rows_.for_each_row(rows_.num_units, p_.k_len, [&](int64_t unit, int64_t key, int) {
      const Head h = rows_.kv_head(unit);
      load(rows_.args.k, h, h.kv_head, key, p_.head_dim, rows_.q_cols, key_row(unit, key));
      load(rows_.args.v, h, h.kv_head, key, p_.v_head_dim, rows_.v_cols, value_row(unit, key));
    });
    rows_.for_each_row(rows_.num_heads(), p_.q_len, [&](int64_t i, int64_t query, int) {
      const Head h = rows_.head(i);
      load(rows_.args.q, h, h.head, query, p_.head_dim, rows_.q_cols, q_row(i, query));
      load(rows_.args.dout, h, h.head, query, p_.v_head_dim, rows_.v_cols, dout_row(i, query));
    });
  }

  void begin_row(Work& work) const {
    std::fill_n(work.dqk.data(), rows_.q_cols, T(0));
    std::fill_n(work.dv.data(), rows_.v_cols, T(0));
  }

  // p and ds of one row against some gathered ones; lse and delta of each pair are in `work`.
  void score_gradients(const T* qk_row, const T* qk_rows, const T* vdo_row, const T* vdo_rows,
                       std::span<const int32_t> index, Work& work) const {
    const int64_t count = int64_t(index.size()), cols = round_up(count, simd_.lanes);
    simd_.gather_dots(qk_row, qk_rows, rows_.q_cols, index.data(), count, rows_.q_cols,
                      work.p.data());
    simd_.gather_dots(vdo_row, vdo_rows, rows_.v_cols, index.data(), count, rows_.v_cols,
                      work.ds.data());
    for (int64_t i = count; i < cols; ++i) {
      work.p[i] = work.ds[i] = work.delta[i] = 0;
      work.lse[i] = std::numeric_limits<T>::infinity();
    }
    simd_.score_gradient({.rule = p_.rule,
                          .rows = 1,
                          .cols = cols,
                          .products = work.p.data(),
                          .dp = work.ds.data(),
                          .stride = kStripKeys,
                          .lse = work.lse.data(),
                          .delta = work.delta.data(),
                          .bitmap = nullptr,
                          .bitmap_words = 0,
                          .queries_across = true});
  }

  void query_gradient(std::span<const int32_t> list, int64_t i, int64_t query, Work& work) const {
    const int64_t unit = i / p_.group;
    begin_row(work);
    in_strips(list, [&](std::span<const int32_t> keys) {
      std::fill_n(work.lse.data(), keys.size(), rows_.lse(i, query));
      std::fill_n(work.delta.data(), keys.size(), rows_.delta(i, query));
      score_gradients(q_row(i, query), key_row(unit, 0), dout_row(i, query), value_row(unit, 0),
                      keys, work);
      simd_.gather_sum(work.ds.data(), key_row(unit, 0), rows_.q_cols, keys.data(),
                       int64_t(keys.size()), rows_.q_cols, work.dqk.data());
    });
    rows_.add_queries(i, {query, 1, 1}, work.dqk.data());
  }

  void key_gradient(const GatherView& view, int64_t unit, int64_t key, Work& work) const {
    begin_row(work);
    for (int64_t i = unit * p_.group; i < (unit + 1) * p_.group; ++i) {
      const int32_t group = view.group_of_head(rows_.head(i).index(p_));
      queries_in_strips(view, group, key, [&](std::span<const int32_t> queries) {
        for (size_t n = 0; n < queries.size(); ++n) {
          work.lse[int64_t(n)] = rows_.lse(i, queries[n]);
          work.delta[int64_t(n)] = rows_.delta(i, queries[n]);
        }
        score_gradients(key_row(unit, key), q_row(i, 0), value_row(unit, key), dout_row(i, 0),
                        queries, work);
        const int64_t count = int64_t(queries.size());
        simd_.gather_sum(work.p.data(), dout_row(i, 0), rows_.v_cols, queries.data(), count,
                         rows_.v_cols, work.dv.data());
        simd_.gather_sum(work.ds.data(), q_row(i, 0), rows_.q_cols, queries.data(), count,
                         rows_.q_cols, work.dqk.data());
      });
    }
    rows_.add_keys(unit, {key, 1, 1}, work.dqk.data(), work.dv.data());
  }

  const GradientRows<Storage>& rows_;
  const Problem& p_;
  const Primitives<Storage>& simd_;
  std::vector<Work> work_;               // [threads]
  Scratch<T> keys_, values_, q_, dout_;  // row-major, of the current wave
};

}  // namespace keyhole::cpu
