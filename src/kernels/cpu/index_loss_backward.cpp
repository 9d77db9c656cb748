// src/kernels/cpu/index_loss_backward.cpp
// Gradients of the index loss, for a few thousand queries at a time and in two steps:
//   by queries   the gradient of every score, which is kept; dq and dw
//   by keys      dk: every key adds up its queries in ascending order
// A number is written by one thread, in an order that does not depend on their number.
#include <cmath>
#include <vector>

#include "base/parallel.h"
#include "kernels/cpu/finite_rows.h"
#include "kernels/cpu/index_loss.h"
#include "kernels/cpu/index_products.h"
#include "kernels/cpu/loss_blocks.h"
#include "kernels/cpu/store_rows.h"
#include "kernels/cpu/target_weights.h"

namespace keyhole::cpu {
namespace {

template <class T>
class IndexGradients {
 public:
  explicit IndexGradients(const IndexGradientArgs& args)
      : args_(args),
        a_(args.loss),
        threads_(a_.threads > 0 ? a_.threads : max_threads()),
        products_(a_.q, a_.k, a_.w, a_.k_scale),
        target_(a_),
        simd_(primitives<T>()),
        select_(select_primitives<T>()),
        queries_(blocks_of_queries(a_)),
        columns_(LossBlock::columns(a_)),
        works_(size_t(threads_)) {}

  void run() {
    clear_queries();
    for (int64_t unit = 0; unit < products_.units(); ++unit) {
      T* const dk = dk_.reserve(products_.panels() * products_.rows_size());
      std::fill_n(dk, products_.panels() * products_.rows_size(), T(0));
      for (size_t first = 0; first < queries_.size();) first = add_blocks(unit, first);
      store_rows(dk, products_.cols(), products_.entries(),
                 TensorHead{&args_.dk, batch(unit), group(unit)}, 0);
    }
  }

 private:
  struct Work {
    typename IndexProducts<T>::Queries queries;
    typename IndexProducts<T>::Strip strip;
    typename TargetWeights<T>::Queries target_queries;
    typename TargetWeights<T>::Strip target_strip;
    Scratch<T> rows, panel, weights, dq, dw, dk_rows;
    FiniteRows<T> finite;  // of the entries of a panel, or of the queries of a block
  };

  int64_t batch(int64_t unit) const { return unit / products_.groups(); }
  int64_t group(int64_t unit) const { return unit % products_.groups(); }

  // Queries that do not count have no gradient.
  void clear_queries() const {
    if (!a_.has_rows) return;
    const std::vector<T> zeros(size_t(products_.cols()), T(0));
    for (int64_t b = 0; b < a_.q.shape[0]; ++b) {
      for (int64_t h = 0; h < a_.q.shape[1]; ++h) {
        for (int64_t t = 0; t < a_.q.shape[2]; ++t) {
          store_rows(zeros.data(), products_.cols(), 1, TensorHead{&args_.dq, b, h}, t);
          if (args_.dw.is_given()) *rows_of<T>(args_.dw, b, h)[t] = 0;
        }
      }
    }
  }

  // As many blocks from `first` on as have room for their score gradients; gives the next one.
  size_t add_blocks(int64_t unit, size_t first) {
    constexpr int64_t kMostBytes = int64_t{32} << 20;
    const int64_t most = std::max<int64_t>(1, kMostBytes / (columns_ * int64_t(sizeof(T))));
    size_t last = first;
    std::vector<int64_t> begins;  // the first row of each block
    int64_t rows = 0;
    for (; last < queries_.size() && (last == first || rows + queries_[last].count <= most);
         ++last) {
      begins.push_back(rows);
      rows += queries_[last].count;
    }
    const int64_t count = int64_t(last - first);
    ds_.reserve(rows * columns_);
    blocks_.resize(std::max(blocks_.size(), size_t(count)));
    parallel_for(count, threads_, [&](int64_t i, int thread) {
      const QueryRange& range = queries_[first + size_t(i)];
      blocks_[size_t(i)].draw(a_, unit, range.first, range.count);
      by_queries(blocks_[size_t(i)], ds_.data() + begins[size_t(i)] * columns_,
                 works_[size_t(thread)]);
    });
    // A range of keys for each thread, and a few more: ranges are not equally long.
    const int64_t ranges = threads_ == 1 ? 1 : 4 * threads_;
    const int64_t keys = round_up(ceil_div(products_.entries(), ranges), kPanel);
    parallel_for(keys > 0 ? ceil_div(products_.entries(), keys) : 0, threads_,
                 [&](int64_t range, int thread) {
                   for (int64_t i = 0; i < count; ++i) {
                     by_keys(blocks_[size_t(i)], ds_.data() + begins[size_t(i)] * columns_,
                             range * keys, (range + 1) * keys, works_[size_t(thread)]);
                   }
                 });
    return last;
  }

  // ds[i][kPanel] of one panel: the gradient of the loss by score / scale.
  void score_gradients(const LossBlock& block, const EntryPanel& panel, int64_t i, const T* scores,
                       const T* weights, const T* scales, T* ds) const {
    const int64_t query = block.first + i;
    const T* const stats = rows_of<const T>(a_.stats, batch(block.unit), group(block.unit))[query];
    const T dloss = *rows_of<const T>(args_.dloss, batch(block.unit), group(block.unit))[query];
    std::fill_n(ds, kPanel, T(0));
    if (stats[1] == 0) return;  // the loss is 0 whatever the scores are
    const uint64_t pairs = block.pairs(i, panel);
    for_each_bit(&pairs, kPanel, [&](int64_t x) {
      ds[x] = dloss * scales[x] * (std::exp(scores[x] - stats[0]) - weights[x] / stats[1]);
    });
  }

  void by_queries(const LossBlock& block, T* ds, Work& work) const {
    const int64_t heads = products_.heads(), cols = products_.cols();
    products_.load_queries(block.unit, block.first, block.count, work.queries);
    target_.load_queries(block.unit, block.first, block.count, work.target_queries);
    T* const dq = work.dq.reserve(block.count * heads * cols);
    T* const dw = work.dw.reserve(block.count * heads);
    std::fill_n(dq, block.count * heads * cols, T(0));
    std::fill_n(dw, block.count * heads, T(0));
    const int64_t step = products_.queries_per_product();
    block.for_each_panel(0, products_.panels() * kPanel, [&](const EntryPanel& panel) {
      alignas(kAlignment) T scales[kPanel], scores[kPanel], ds_here[kPanel];
      const T* const packed = pack(block, panel, work);
      work.finite.take(work.rows.data(), panel.width, cols);
      products_.load_scales(block.unit, panel, scales);
      T* const weights = work.weights.reserve(block.count * kPanel);
      target_.weigh(block, work.target_queries, panel, weights, work.target_strip);
      for (int64_t first = 0; first < block.count; first += step) {
        const int64_t count = std::min(step, block.count - first);
        products_.multiply(work.queries, first, count, packed, work.strip);
        for (int64_t i = first; i < first + count; ++i) {
          T* const products = work.strip.products.data() + (i - first) * heads * kPanel;
          const T* const w = work.queries.w.data() + i * heads;
          select_.relu_sum(products, heads, w, scales, scores);
          score_gradients(block, panel, i, scores, weights + i * kPanel, scales, ds_here);
          std::copy_n(ds_here, panel.width, ds + i * columns_ + panel.column);
          select_.relu_gradient(products, heads, w, ds_here, dw + i * heads);
        }
        // dq += product gradients x entries
        for_each_columns([&](int64_t x, int64_t width) {
          simd_.gemm({.rows = count * heads,
                      .cols = width,
                      .depth = panel.width,
                      .a = work.strip.products.data(),
                      .a_stride = kPanel,
                      .b = work.finite.rows() + x,
                      .b_stride = cols,
                      .c = dq + first * heads * cols + x,
                      .c_stride = cols,
                      .accumulate = true,
                      .meanwhile = &work.strip.soon});
        });
        work.finite.add_others(0, panel.width, [&](int64_t entry, auto add) {
          for (int64_t row = 0; row < count * heads; ++row) {
            add(work.strip.products.data()[row * kPanel + entry],
                dq + (first * heads + row) * cols);
          }
        });
      }
    });
    const int64_t first_head = group(block.unit) * heads;
    for (int64_t h = 0; h < heads; ++h) {
      const TensorHead to = {&args_.dq, batch(block.unit), first_head + h};
      for (int64_t i = 0; i < block.count; ++i) {
        store_rows(dq + (i * heads + h) * cols, cols, 1, to, block.first + i);
        if (args_.dw.is_given()) {
          *rows_of<T>(args_.dw, batch(block.unit), first_head + h)[block.first + i] =
              dw[i * heads + h];
        }
      }
    }
  }

  // The keys in [begin, end).
  void by_keys(const LossBlock& block, const T* ds, int64_t begin, int64_t end, Work& work) const {
    const int64_t heads = products_.heads(), cols = products_.cols();
    const int64_t step = products_.queries_per_product();
    bool is_loaded = false;
    block.for_each_panel(begin, end, [&](const EntryPanel& panel) {
      if (!is_loaded) {
        products_.load_queries(block.unit, block.first, block.count, work.queries);
        work.finite.take(work.queries.q.data(), block.count * heads, cols);
        is_loaded = true;
      }
      const T* const packed = pack(block, panel, work);
      T* const dk = work.dk_rows.reserve(products_.rows_size());
      std::fill_n(dk, products_.rows_size(), T(0));
      alignas(kAlignment) T ds_here[kPanel] = {};
      for (int64_t first = 0; first < block.count; first += step) {
        const int64_t count = std::min(step, block.count - first);
        products_.multiply(work.queries, first, count, packed, work.strip);
        for (int64_t i = first; i < first + count; ++i) {
          std::copy_n(ds + i * columns_ + panel.column, panel.width, ds_here);
          select_.relu_gradient(work.strip.products.data() + (i - first) * heads * kPanel, heads,
                                work.queries.w.data() + i * heads, ds_here, nullptr);
        }
        // dk += product gradients, transposed, x queries
        for_each_columns([&](int64_t x, int64_t width) {
          simd_.gemm({.rows = panel.width,
                      .cols = width,
                      .depth = count * heads,
                      .a = work.strip.products.data(),
                      .a_stride = kPanel,
                      .b = work.finite.rows() + first * heads * cols + x,
                      .b_stride = cols,
                      .c = dk + x,
                      .c_stride = cols,
                      .accumulate = true,
                      .a_transposed = true,
                      .meanwhile = &work.strip.soon});
        });
        const int64_t begin_row = first * heads;
        work.finite.add_others(begin_row, begin_row + count * heads, [&](int64_t row, auto add) {
          for (int64_t x = 0; x < panel.width; ++x) {
            add(work.strip.products.data()[(row - begin_row) * kPanel + x], dk + x * cols);
          }
        });
      }
      for (int64_t x = 0; x < panel.width; ++x) {
        simd_.add_row(dk + x * cols, cols, dk_.data() + panel.key(x) * cols);
      }
    });
  }

  // work.rows holds the entries as rows after it.
  const T* pack(const LossBlock& block, const EntryPanel& panel, Work& work) const {
    T* const packed = work.panel.reserve(products_.panel_size());
    products_.pack(block.unit, panel, work.rows.reserve(products_.rows_size()), packed);
    return packed;
  }

  // Calls visit(first, count) for the columns of a row, kPanel at a time.
  template <class Visit>
  void for_each_columns(Visit visit) const {
    for (int64_t x = 0; x < products_.cols(); x += kPanel) {
      visit(x, std::min(kPanel, products_.cols() - x));
    }
  }

  const IndexGradientArgs& args_;
  const IndexLossArgs& a_;
  const int threads_;
  const IndexProducts<T> products_;
  const TargetWeights<T> target_;
  const Primitives<T>& simd_;
  const SelectPrimitives<T>& select_;
  const std::vector<QueryRange> queries_;
  const int64_t columns_;
  std::vector<LossBlock> blocks_;
  Scratch<T> ds_;  // [rows][columns_], of the blocks at hand
  Scratch<T> dk_;  // [entries, in whole panels][cols]
  std::vector<Work> works_;
};

}  // namespace

template <class T>
void index_loss_backward(const IndexGradientArgs& args) {
  IndexGradients<T>(args).run();
}

template void index_loss_backward<float>(const IndexGradientArgs&);
template void index_loss_backward<double>(const IndexGradientArgs&);

}  // namespace keyhole::cpu
