// src/kernels/cpu/gather_forward.h
// The forward pass over a part of key lists. A work item is a few neighbouring queries of one head.
#pragma once

#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/cpu/output_rows.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/problem.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/tile_walk.h"

namespace keyhole::cpu {

template <class Storage>
class GatherForward {
  using T = typename Traits<Storage>::Compute;

 public:
  GatherForward(const ForwardArgs& args, const OutputRows<Storage>& rows)
      : args_(args),
        rows_(rows),
        p_(rows.p),
        simd_(rows.simd),
        q_cols_(round_up(p_.head_dim, simd_.lanes)),
        work_(size_t(p_.threads)) {
    if (p_.plan.gathers.empty()) return;
    for (Work& work : work_) {
      work.q.reserve(q_cols_);
      work.scores.reserve(kStripKeys);
      rows_.reserve(work.rows);
    }
  }

  int64_t bytes_per_unit() const {
    if (p_.plan.gathers.empty()) return 0;
    const int64_t key = is_in_place(p_.head_dim, q_cols_) ? 0 : q_cols_;
    const int64_t value = is_in_place(p_.v_head_dim, rows_.cols) ? 0 : rows_.cols;
    return p_.k_len * (key + value) * int64_t(sizeof(T));
  }

  void follow(const GatherView& view) {
    pack();
    const int64_t items = ceil_div(p_.q_len, kQueriesPerItem);
    parallel_for(rows_.num_heads() * items, p_.threads, [&](int64_t item, int thread) {
      const int64_t head = item / items, begin = item % items * kQueriesPerItem;
      const int32_t group = view.group_of_head(rows_.head(head).index(p_));
      const int64_t end = std::min(begin + kQueriesPerItem, p_.q_len);
      for (int64_t query = begin; query < end; ++query) {
        follow_keys(keys_of(view, group, query), head, query, work_[size_t(thread)]);
      }
    });
  }

 private:
  static constexpr int64_t kQueriesPerItem = 16;

  // The state of a thread: a query, its scores, and the softmax so far.
  struct Work {
    Scratch<T> q, scores;
    typename OutputRows<Storage>::Block rows;
  };

  // The rows to gather from: those of the tensor if they can be used in place (whole vectors of the
  // compute type), else a packed copy.
  static bool is_in_place(int64_t head_dim, int64_t cols) {
    return std::is_same_v<Storage, T> && head_dim == cols;
  }
  Rows<const T> rows_to_gather(const TensorView& tensor, const Head& head, int64_t head_dim,
                               int64_t cols, const T* packed) const {
    if constexpr (std::is_same_v<Storage, T>) {
      if (is_in_place(head_dim, cols)) return rows_of<const T>(tensor, head.batch, head.kv_head);
    }
    return {packed, cols};
  }

  void pack() {
    const bool has_keys = is_in_place(p_.head_dim, q_cols_);
    const bool has_values = is_in_place(p_.v_head_dim, rows_.cols);
    const RowMap map = RowMap::plain(p_.k_len);
    keys_per_unit_ = p_.k_len * q_cols_;
    values_per_unit_ = p_.k_len * rows_.cols;
    if (!has_keys) keys_.reserve(rows_.num_units * keys_per_unit_);
    if (!has_values) values_.reserve(rows_.num_units * values_per_unit_);
    if (has_keys && has_values) return;
    const int64_t steps = ceil_div(p_.k_len, kPanel);
    parallel_for(rows_.num_units * steps, p_.threads, [&](int64_t item, int) {
      const int64_t unit = item / steps, begin = item % steps * kPanel;
      const int64_t rows = std::min(kPanel, p_.k_len - begin);
      const Head head = head_of(p_, rows_.first_unit + unit, 0);
      if (!has_keys) {
        load_packed(simd_, map, rows_of<const Storage>(args_.k, head.batch, head.kv_head),
                    p_.head_dim, begin, rows,
                    keys_.data() + unit * keys_per_unit_ + begin * q_cols_, q_cols_);
      }
      if (!has_values) {
        load_packed(simd_, map, rows_of<const Storage>(args_.v, head.batch, head.kv_head),
                    p_.v_head_dim, begin, rows,
                    values_.data() + unit * values_per_unit_ + begin * rows_.cols, rows_.cols);
      }
    });
  }

  void follow_keys(std::span<const int32_t> list, int64_t head, int64_t query, Work& work) const {
    if (rows_.keeps_state && list.empty()) return;
    const Head h = rows_.head(head);
    const int64_t unit = head / p_.group;
    const Rows<const T> keys =
        rows_to_gather(args_.k, h, p_.head_dim, q_cols_, keys_.at(unit * keys_per_unit_));
    const Rows<const T> values =
        rows_to_gather(args_.v, h, p_.v_head_dim, rows_.cols, values_.at(unit * values_per_unit_));
    simd_.load_rows(rows_of<const Storage>(args_.q, h.batch, h.head)[query], 0, 1, p_.head_dim,
                    q_cols_, p_.fold_factor<T>(), work.q.data(), q_cols_);
    const SpacedRows queries = {query, 1, 1};
    rows_.begin(work.rows, head, queries);
    rows_.define_out(work.rows, 1);
    T* scores = work.scores.data();
    while (!list.empty()) {
      const int64_t count = std::min(int64_t(list.size()), kStripKeys);
      const int64_t cols = round_up(count, simd_.lanes);
      simd_.gather_dots(work.q.data(), keys.data, keys.stride, list.data(), count, q_cols_, scores);
      std::fill(scores + count, scores + cols, T(0));
      simd_.score(scores, kStripKeys, 1, cols, p_.rule, /*is_folded=*/true);
      std::fill(scores + count, scores + cols, -std::numeric_limits<T>::infinity());
      simd_.softmax(rows_.softmax_of(work.rows, scores, kStripKeys, 1, cols));
      simd_.gather_sum(scores, values.data, values.stride, list.data(), count, rows_.cols,
                       work.rows.out.data());
      list = list.subspan(size_t(count));
    }
    rows_.end(work.rows, head, queries);
  }

  const ForwardArgs& args_;
  const OutputRows<Storage>& rows_;
  const Problem& p_;
  const Primitives<Storage>& simd_;
  const int64_t q_cols_;    // head_dim, rounded up to whole vectors
  std::vector<Work> work_;  // [threads]

  Scratch<T> keys_, values_;  // [units in wave] rows to gather from
  int64_t keys_per_unit_ = 0, values_per_unit_ = 0;
};

}  // namespace keyhole::cpu
