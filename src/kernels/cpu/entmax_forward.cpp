// src/kernels/cpu/entmax_forward.cpp
// Per row: scan -> a list of the keys that may have weight -> lambda -> weights -> the values of
// the keys that have weight. Only those values are read. One thread computes a whole row in a fixed
// order.
#include "kernels/cpu/entmax_forward.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/cpu/entmax_exact.h"
#include "kernels/cpu/entmax_scan.h"

namespace keyhole::cpu {
namespace {

template <class Storage, bool kOnAmx = false>
class EntmaxForward {
  using T = typename Traits<Storage>::Compute;
  using Scan = EntmaxScan<Storage, kOnAmx>;

 public:
  explicit EntmaxForward(const ForwardArgs& args)
      : args_(args),
        p_(problem_of(args)),
        simd_(primitives<Storage>()),
        lists_(entmax_primitives<Storage>()),
        v_cols_(round_up(p_.v_head_dim, simd_.lanes)),
        scan_(args.q, args.k, p_),
        work_(size_t(p_.threads)) {}

  void run() {
    if (p_.q_len == 0) return;
    for_each_wave(p_, scan_.bytes_per_unit(), [this](int64_t first, int64_t last) {
      scan_.begin_wave(first, last);
      const int64_t blocks = scan_.blocks_per_head();
      parallel_for(scan_.num_heads() * blocks, p_.threads, [&](int64_t item, int thread) {
        Work& work = work_[size_t(thread)];
        const auto block = scan_.block_by_length(item / blocks, item % blocks);
        scan_.scan(
            block, nullptr, work.scan, [](int64_t) { return true; },
            [&](int64_t r, RowKeys<T>& row) { finish(block.head, block.queries[r], row, work); });
      });
    });
  }

 private:
  struct Work {
    typename Scan::Work scan;
    Scratch<T> weights, slopes, out;
  };

  void finish(const Head& h, int64_t query, RowKeys<T>& row, Work& work) const {
    const double sink = p_.sink != nullptr ? p_.sink_of(h.head) : -INFINITY;
    if (!row.is_finite || !(sink < INFINITY)) [[unlikely]]
      return finish_exactly(h, query, work);
    const bool has_sink = sink != -INFINITY;
    if (has_sink) row.scores[row.count] = T(sink);
    int64_t entries = row.count + (has_sink ? 1 : 0);
    const Lambda<T> lambda = lists_.solve(scan_.power(), row.scores, entries, row.at_least);
    if (!has_sink) {  // most of what has no weight, at once
      const T lowest = scan_.lowest_score(lambda.value());
      entries = row.count = lists_.drop(row.scores, row.keys, row.count, lowest);
    }
    const int64_t padded = entries + kMaxLanes<T>;
    T* const weights = work.weights.reserve(padded);
    T total = 1;
    if (entries > 0) {
      total = T(lists_
                    .weigh(scan_.power(), row.scores, entries, lambda, weights,
                           work.slopes.reserve(padded))
                    .weight);
    }
    int64_t kept = 0;
    for (int64_t j = 0; j < row.count; ++j) {
      if (weights[j] == 0) continue;
      weights[kept] = weights[j] / total;  // what rounding of lambda leaves over is shared
      row.keys[kept++] = row.keys[j];
    }
    store(h, query, lambda.value(), {row.keys, size_t(kept)}, weights, work);
  }

  void finish_exactly(const Head& h, int64_t query, Work& work) const {
    ExactRow row = exact_entmax_row<Storage>(args_.q, args_.k, p_, h, query, nullptr);
    const bool is_nan = std::isnan(row.lambda);
    if (is_nan) row.keys.clear();
    T* const weights = work.weights.reserve(int64_t(row.weights.size()) + 1);
    std::copy(row.weights.begin(), row.weights.end(), weights);
    store(h, query, T(row.lambda), row.keys, weights, work);
    if (!is_nan) return;
    Storage* const out = rows_of<Storage>(args_.out, h.batch, h.head)[query];
    std::fill_n(out, p_.v_head_dim, Traits<Storage>::from(std::numeric_limits<T>::quiet_NaN()));
    if (args_.support.is_given()) args_.support.row(h.batch, h.head, query)[0] = kLongSupport;
  }

  void store(const Head& h, int64_t query, T lambda, std::span<int32_t> keys, const T* weights,
             Work& work) const {
    const auto v = rows_of<const Storage>(args_.v, h.batch, h.kv_head);
    T* const out = work.out.reserve(v_cols_);
    lists_.gather_sum(weights, v.data, v.stride, keys.data(), int64_t(keys.size()), p_.v_head_dim,
                      out);
    simd_.store_rows(out, v_cols_, 1, p_.v_head_dim, nullptr,
                     rows_of<Storage>(args_.out, h.batch, h.head)[query], 0);
    if (args_.lse.is_given()) *rows_of<T>(args_.lse, h.batch, h.head)[query] = lambda;
    if (args_.support.is_given()) store_support(args_.support.row(h.batch, h.head, query), keys);
  }

  static void store_support(int32_t* to, std::span<int32_t> keys) {
    std::fill_n(to, kSupportKeys, -1);
    if (int64_t(keys.size()) > kSupportKeys) {
      to[0] = kLongSupport;
      return;
    }
    if (!std::is_sorted(keys.begin(), keys.end())) std::sort(keys.begin(), keys.end());
    std::copy(keys.begin(), keys.end(), to);
  }

  const ForwardArgs& args_;
  const Problem p_;
  const Primitives<Storage>& simd_;
  const EntmaxPrimitives<Storage>& lists_;
  const int64_t v_cols_;  // v_head_dim, rounded up to whole vectors
  Scan scan_;
  std::vector<Work> work_;  // [threads]
};

}  // namespace

template <class Storage>
void entmax_forward(const ForwardArgs& args) {
  EntmaxForward<Storage>(args).run();
}

template void entmax_forward<float>(const ForwardArgs&);
template void entmax_forward<double>(const ForwardArgs&);
template void entmax_forward<Half>(const ForwardArgs&);
template void entmax_forward<BFloat16>(const ForwardArgs&);

template <class Storage>
void entmax_forward_on_amx(const ForwardArgs& args) {
  EntmaxForward<Storage, true>(args).run();
}
template void entmax_forward_on_amx<Half>(const ForwardArgs&);
template void entmax_forward_on_amx<BFloat16>(const ForwardArgs&);

}  // namespace keyhole::cpu
