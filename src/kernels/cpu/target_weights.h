// src/kernels/cpu/target_weights.h
// What attention looks at: exp(score - lse), summed over the query heads of a group and the listed
// keys of an entry, for blocks of queries and panels of entries.
#pragma once

#include <algorithm>
#include <vector>

#include "base/weight_rule.h"
#include "kernels/cpu/entry_panel.h"
#include "kernels/cpu/loss_blocks.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/select_primitives.h"
#include "kernels/select_contract.h"

namespace keyhole::cpu {

template <class T>
class TargetWeights {
 public:
  // The queries of a block, for each kv head the rows [count][its heads in the group][cols].
  struct Queries {
    Scratch<T> q, lse;  // lse: of base 2
    int64_t count = 0;
  };
  struct Strip {
    Scratch<T> rows, panel, products, weights;
    Prefetch soon;
  };

  explicit TargetWeights(const IndexLossArgs& args)
      : q_(args.target_q),
        k_(args.target_k),
        lse_(args.target_lse),
        rule_(args.rule),
        simd_(primitives<T>()),
        select_(select_primitives<T>()),
        groups_(args.k.shape[1]),
        heads_(groups_ > 0 ? q_.shape[1] / groups_ : 0),
        heads_per_key_(k_.shape[1] > 0 ? q_.shape[1] / k_.shape[1] : 1),
        keys_per_entry_(args.keys_per_entry),
        cols_(round_up(q_.shape[3], simd_.lanes)) {}

  void load_queries(int64_t unit, int64_t first, int64_t count, Queries& to) const {
    to.count = count;
    T* q = to.q.reserve(count * heads_ * cols_);
    T* lse = to.lse.reserve(count * heads_);
    for_each_kv_head(unit, [&](const HeadRun& run) {
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t h = run.first; h < run.first + run.count; ++h, q += cols_) {
          load_rows(TensorHead{&q_, run.batch, h}, first + i, 1, q, cols_);
          *lse++ = T(lse_at(run.batch, h, first + i) * kLog2E);
        }
      }
    });
  }

  // weights[i][kPanel] of all queries of a block and a panel of entries.
  void weigh(const LossBlock& block, const Queries& queries, const EntryPanel& panel, T* weights,
             Strip& strip) const {
    if (keys_per_entry_ == 1) return weigh_keys(block.unit, queries, panel, weights, strip);
    std::fill_n(weights, queries.count * kPanel, T(0));
    T* const more = strip.weights.reserve(queries.count * kPanel);
    // The first key of every entry, then the second one.
    for (int64_t of_entry = 0; of_entry < keys_per_entry_; ++of_entry) {
      const auto key = [&](int64_t x) { return panel.key(x) * keys_per_entry_ + of_entry; };
      int32_t keys[kPanel];
      for (int64_t x = 0; x < panel.width; ++x) {
        keys[x] =
            int32_t(std::min(key(x), k_.shape[2] - 1));  // behind the last: has_key() leaves it out
      }
      weigh_keys(block.unit, queries, {panel.column, panel.width, keys}, more, strip);
      for (int64_t i = 0; i < queries.count * kPanel; ++i) {
        const int64_t x = i % kPanel;
        if (x < panel.width && block.has_key(i / kPanel, key(x))) weights[i] += more[i];
      }
    }
  }

 private:
  void weigh_keys(int64_t unit, const Queries& queries, const EntryPanel& panel, T* weights,
                  Strip& strip) const {
    std::fill_n(weights, queries.count * kPanel, T(0));
    const T *q = queries.q.data(), *lse = queries.lse.data();
    for_each_kv_head(unit, [&](const HeadRun& run) {
      const int64_t step = std::max<int64_t>(1, kRowsPerProduct / run.count);
      T* const packed = strip.panel.reserve(q_.shape[3] * kPanel);
      panel.load({&k_, run.batch, run.kv_head}, strip.rows.reserve(kPanel * cols_), cols_);
      transpose_to_panel(strip.rows.data(), cols_, panel.width, q_.shape[3], packed);
      for (int64_t first = 0; first < queries.count; first += step) {
        const int64_t count = std::min(step, queries.count - first), rows = count * run.count;
        T* const products = strip.products.reserve(rows * kPanel);
        simd_.gemm({.rows = rows,
                    .cols = kPanel,
                    .depth = q_.shape[3],
                    .a = q,
                    .a_stride = cols_,
                    .b = packed,
                    .b_stride = kPanel,
                    .c = products,
                    .c_stride = kPanel,
                    .meanwhile = &strip.soon});
        simd_.score(products, kPanel, rows, kPanel, rule_, /*is_folded=*/false);
        for (int64_t i = 0; i < count; ++i) {
          select_.add_powers(products + i * run.count * kPanel, run.count, lse + i * run.count,
                             weights + (first + i) * kPanel);
        }
        q += rows * cols_;
        lse += rows;
      }
    });
  }

  // Neighbouring query heads of a group that share a kv head.
  struct HeadRun {
    int64_t batch, kv_head, first, count;
  };
  template <class Visit>
  void for_each_kv_head(int64_t unit, Visit visit) const {
    const int64_t begin = unit % groups_ * heads_;
    for (int64_t h = begin; h < begin + heads_;) {
      const int64_t kv_head = h / heads_per_key_;
      const int64_t end = std::min(begin + heads_, (kv_head + 1) * heads_per_key_);
      visit(HeadRun{unit / groups_, kv_head, h, end - h});
      h = end;
    }
  }
  double lse_at(int64_t batch, int64_t head, int64_t query) const {
    return lse_.dtype == DType::f64 ? *rows_of<const double>(lse_, batch, head)[query]
                                    : double(*rows_of<const float>(lse_, batch, head)[query]);
  }

  const TensorView& q_;
  const TensorView& k_;
  const TensorView& lse_;
  const WeightRule rule_;
  const Primitives<T>& simd_;
  const SelectPrimitives<T>& select_;
  const int64_t groups_, heads_, heads_per_key_, keys_per_entry_, cols_;
};

}  // namespace keyhole::cpu
