// src/kernels/cpu/indexer.h
// An indexer as its products see it: sizes, weights, scales, and scores from products. Entries come
// in panels of kPanel.
#pragma once

#include <algorithm>

#include "base/int_math.h"
#include "kernels/cpu/entry_panel.h"
#include "kernels/cpu/load_rows.h"
#include "kernels/cpu/problem.h"
#include "kernels/cpu/select_primitives.h"

namespace keyhole::cpu {

// T: the type of sums.
template <class T>
class Indexer {
 public:
  using Sum = T;

  Indexer(const TensorView& q, const TensorView& k, const TensorView& w, const TensorView& k_scale)
      : q_(q),
        k_(k),
        w_(w),
        k_scale_(k_scale),
        select_(select_primitives<T>()),
        groups_(k.shape[1]),
        heads_(groups_ > 0 ? q.shape[1] / groups_ : 0) {}

  int64_t units() const { return k_.shape[0] * groups_; }  // a group of a batch entry
  int64_t groups() const { return groups_; }
  int64_t heads() const { return heads_; }  // of a group
  int64_t head_dim() const { return q_.shape[3]; }
  int64_t entries() const { return k_.shape[2]; }
  int64_t panels() const { return ceil_div(entries(), kPanel); }
  EntryPanel panel(int64_t p) const {
    return {p * kPanel, std::min(kPanel, entries() - p * kPanel)};
  }
  // As many queries as fill the registers of a product and keep its result in the L1 cache.
  int64_t queries_per_product() const { return std::max<int64_t>(1, kRowsPerProduct / heads_); }

  // The scales of a panel of entries, in kPanel places; 1 where there is none.
  void load_scales(int64_t unit, const EntryPanel& panel, T* to) const {
    std::fill_n(to, kPanel, T(1));
    if (!k_scale_.is_given()) return;
    const auto scales = rows_of<const T>(k_scale_, unit / groups_, unit % groups_);
    for (int64_t x = 0; x < panel.width; ++x) to[x] = *scales[panel.key(x)];
  }

 protected:
  TensorHead entry_rows(int64_t unit) const { return {&k_, unit / groups_, unit % groups_}; }

  // Calls visit(head, query, i) for the rows of q of some queries; row i of [count][heads].
  template <class Visit>
  void for_each_query_row(int64_t unit, int64_t first, int64_t count, Visit visit) const {
    const int64_t first_head = unit % groups_ * heads_;
    for (int64_t i = 0; i < count * heads_; ++i) {
      visit(TensorHead{&q_, unit / groups_, first_head + i % heads_}, first + i / heads_, i);
    }
  }
  // to[count][heads]
  void load_weights(int64_t unit, int64_t first, int64_t count, T* to) const {
    for_each_query_row(unit, first, count, [&](const TensorHead& head, int64_t query, int64_t i) {
      to[i] = w_.is_given() ? *rows_of<const T>(w_, head.batch, head.head)[query] : T(1);
    });
  }
  // scores[i][kPanel] from products[count][heads][kPanel].
  void sum_heads(const T* products, int64_t count, const T* w, const T* scales, T* scores,
                 int64_t stride) const {
    for (int64_t i = 0; i < count; ++i) {
      select_.relu_sum(products + i * heads_ * kPanel, heads_, w + i * heads_, scales,
                       scores + i * stride);
    }
  }

 private:
  const TensorView& q_;
  const TensorView& k_;
  const TensorView& w_;
  const TensorView& k_scale_;
  const SelectPrimitives<T>& select_;
  const int64_t groups_, heads_;
};

}  // namespace keyhole::cpu
