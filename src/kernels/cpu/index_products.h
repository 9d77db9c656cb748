// src/kernels/cpu/index_products.h
// Products of an indexer on vectors: a packed panel of entries against blocks of queries with all
// their index heads. The products of a query lie side by side, so that its score is one sum over
// them.
#pragma once

#include <algorithm>

#include "kernels/cpu/indexer.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/scratch.h"

namespace keyhole::cpu {

template <class T>
class IndexProducts : public Indexer<T> {
  using Base = Indexer<T>;

 public:
  using Packed = T;
  struct Session {};  // nothing to be done around products
  // Some queries of one group with their weights.
  struct Queries {
    Scratch<T> q;  // [count][heads][cols]
    Scratch<T> w;  // [count][heads]
    int64_t count = 0;
  };
  // The products of some queries with a panel of entries.
  struct Strip {
    Scratch<T> products;  // [count][heads][kPanel]
    Prefetch soon;
  };

  IndexProducts(const TensorView& q, const TensorView& k, const TensorView& w,
                const TensorView& k_scale)
      : Base(q, k, w, k_scale),
        simd_(primitives<T>()),
        cols_(round_up(Base::head_dim(), simd_.lanes)) {}

  int64_t cols() const { return cols_; }  // head_dim in whole vectors
  int64_t panel_size() const { return Base::head_dim() * kPanel; }
  int64_t rows_size() const { return kPanel * cols_; }

  void load_queries(int64_t unit, int64_t first, int64_t count, Queries& to) const {
    to.count = count;
    T* const q = to.q.reserve(count * Base::heads() * cols_);
    Base::for_each_query_row(unit, first, count,
                             [&](const TensorHead& head, int64_t query, int64_t i) {
                               load_rows(head, query, 1, q + i * cols_, cols_);
                             });
    Base::load_weights(unit, first, count, to.w.reserve(count * Base::heads()));
  }

  // Packs a panel for `multiply`. rows: room for rows_size(); holds the entries as rows after it.
  void pack(int64_t unit, const EntryPanel& panel, T* rows, T* to) const {
    panel.load(Base::entry_rows(unit), rows, cols_);
    transpose_to_panel(rows, cols_, panel.width, Base::head_dim(), to);
  }

  // strip = queries [first, first + count) times a packed panel.
  void multiply(const Queries& queries, int64_t first, int64_t count, const T* panel,
                Strip& strip) const {
    simd_.gemm({.rows = count * Base::heads(),
                .cols = kPanel,
                .depth = Base::head_dim(),
                .a = queries.q.data() + first * Base::heads() * cols_,
                .a_stride = cols_,
                .b = panel,
                .b_stride = kPanel,
                .c = strip.products.reserve(count * Base::heads() * kPanel),
                .c_stride = kPanel,
                .meanwhile = &strip.soon});
  }

  // scores[i][kPanel] of all queries against a packed panel, with the scales of its entries.
  void score(const Queries& queries, const T* panel, const T* scales, T* scores, int64_t stride,
             Strip& strip) const {
    const int64_t step = Base::queries_per_product();
    for (int64_t first = 0; first < queries.count; first += step) {
      const int64_t count = std::min(step, queries.count - first);
      multiply(queries, first, count, panel, strip);
      Base::sum_heads(strip.products.data(), count, queries.w.data() + first * Base::heads(),
                      scales, scores + first * stride, stride);
    }
  }

 private:
  const Primitives<T>& simd_;
  const int64_t cols_;
};

}  // namespace keyhole::cpu
