// src/kernels/cpu/gradient_rows.h
// The destination of gradient rows, for the heads of one wave. With one part in the plan a row is
// written as soon as it is known; with several, rows accumulate here until all parts are done. Also
// holds what every part needs of a query: lse, and delta = dout . out.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/exact.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/problem.h"
#include "kernels/cpu/scratch.h"

namespace keyhole::cpu {

template <class Storage>
class GradientRows {
 public:
  using T = typename Traits<Storage>::Compute;

  explicit GradientRows(const BackwardArgs& arguments)
      : args(arguments),
        p(problem_of(arguments)),
        simd(primitives<Storage>()),
        q_cols(round_up(p.head_dim, simd.lanes)),
        v_cols(round_up(p.v_head_dim, simd.lanes)),
        adds_up_(!one_part_has_all()) {
    if (args.dsink.is_given()) sink_terms_.assign(size_t(p.batch * p.heads), 0);
  }

  const BackwardArgs& args;
  const Problem p;
  const Primitives<Storage>& simd;
  const int64_t q_cols, v_cols;  // head_dim and v_head_dim, rounded up to whole vectors

  // Heads and units (kv heads) are counted within the wave.
  int64_t first_unit = 0, num_units = 0;
  int64_t num_heads() const { return num_units * p.group; }
  Head head(int64_t i) const { return head_of(p, first_unit + i / p.group, i % p.group); }
  Head kv_head(int64_t unit) const { return head_of(p, first_unit + unit, 0); }

  int64_t bytes_per_unit() const {
    const int64_t sums = p.group * p.q_len * q_cols + p.k_len * (q_cols + v_cols);
    return ((adds_up_ ? sums : 0) + 2 * p.group * p.q_len) * int64_t(sizeof(T));
  }

  void begin_wave(int64_t first, int64_t last);
  void finish_wave() const;
  void store_dsink() const;

  // lse in base 2, +inf for a query that attends to nothing.
  T lse(int64_t i, int64_t query) const { return lse_[i * p.q_len + query]; }
  T delta(int64_t i, int64_t query) const { return delta_[i * p.q_len + query]; }

  // Adds the contribution of one part to some rows, contiguous in dq, dk and dv. Called once per
  // row and part, by one thread.
  void add_queries(int64_t i, const SpacedRows& queries, const T* dq) const {
    if (!adds_up_) return finish_queries(head(i), queries, dq);
    for (int64_t r = 0; r < queries.count; ++r) {
      simd.add_row(dq + r * q_cols, q_cols, dq_sum(i, queries[r]));
    }
  }
  void add_keys(int64_t unit, const SpacedRows& keys, const T* dk, const T* dv) const {
    if (!adds_up_) return finish_keys(kv_head(unit), keys, dk, dv);
    for (int64_t r = 0; r < keys.count; ++r) {
      simd.add_row(dk + r * q_cols, q_cols, dk_sum(unit, keys[r]));
      simd.add_row(dv + r * v_cols, v_cols, dv_sum(unit, keys[r]));
    }
  }

  // Prefetches the rows of dk and dv that will be written.
  void prefetch_keys(int64_t unit, const SpacedRows& keys, Prefetch& soon) const {
    if (adds_up_) return;
    const Head h = kv_head(unit);
    const auto dk = rows_of<Storage>(args.dk, h.batch, h.kv_head);
    const auto dv = rows_of<Storage>(args.dv, h.batch, h.kv_head);
    soon.add(dk[keys.first], dk.stride * keys.stride, keys.count, p.head_dim);
    soon.add(dv[keys.first], dv.stride * keys.stride, keys.count, p.v_head_dim);
  }

  // Calls visit(item, begin, count, thread) for the rows of each of `items` heads or units, in
  // blocks.
  template <class Visit>
  void for_each_block(int64_t items, int64_t rows, Visit visit) const {
    constexpr int64_t kRowsAtOnce = 64;
    const int64_t steps = ceil_div(rows, kRowsAtOnce);
    parallel_for(items * steps, p.threads, [&](int64_t step, int thread) {
      const int64_t begin = step % steps * kRowsAtOnce;
      visit(step / steps, begin, std::min(kRowsAtOnce, rows - begin), thread);
    });
  }
  // The same row by row: visit(item, row, thread).
  template <class Visit>
  void for_each_row(int64_t items, int64_t rows, Visit visit) const {
    for_each_block(items, rows, [&](int64_t item, int64_t begin, int64_t count, int thread) {
      for (int64_t row = begin; row < begin + count; ++row) visit(item, row, thread);
    });
  }

 private:
  static constexpr T kInfinity = std::numeric_limits<T>::infinity();
  static constexpr T kNaN = std::numeric_limits<T>::quiet_NaN();

  bool one_part_has_all() const;
  void find_deltas();
  void find_sink_terms();
  void finish_queries(const Head& head, const SpacedRows& queries, const T* dq) const;
  void finish_keys(const Head& head, const SpacedRows& keys, const T* dk, const T* dv) const;

  T* dq_sum(int64_t i, int64_t query) const {
    return dq_sum_.data() + (i * p.q_len + query) * q_cols;
  }
  T* dk_sum(int64_t unit, int64_t key) const {
    return dk_sum_.data() + (unit * p.k_len + key) * q_cols;
  }
  T* dv_sum(int64_t unit, int64_t key) const {
    return dv_sum_.data() + (unit * p.k_len + key) * v_cols;
  }

  const bool adds_up_;
  std::vector<double> sink_terms_;       // [batch * heads]
  Scratch<T> lse_, delta_;               // [heads in wave][q_len]
  Scratch<T> dq_sum_, dk_sum_, dv_sum_;  // when several parts are summed
};

}  // namespace keyhole::cpu
