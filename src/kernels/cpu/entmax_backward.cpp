// src/kernels/cpu/entmax_backward.cpp
// Two steps, for some blocks of queries at a time:
//
//   rows   the keys of a row that have weight, from the support or by a scan. Then, with u the
//   slopes,
//          g = dout . v:  delta = (sum u g - dlse) / sum u,  ds = u (g - delta) * steepness,
//          dq = sum ds k.
//          (key, weight, ds) are kept.
//   keys   a thread owns some keys: dv += weight * dout and dk += ds * q, row after row.
//
// A key's sums are added in the order of the rows, whatever the number of threads and of blocks at
// a time: the same bits. Memory: what is kept of some blocks, never of all rows.
#include "kernels/cpu/entmax_backward.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cpu/entmax_exact.h"
#include "kernels/cpu/entmax_scan.h"

namespace keyhole::cpu {
namespace {

template <class Storage, bool kOnAmx = false>
class EntmaxBackward {
  using T = typename Traits<Storage>::Compute;
  using Scan = EntmaxScan<Storage, kOnAmx>;

 public:
  explicit EntmaxBackward(const BackwardArgs& args)
      : args_(args),
        p_(problem_of(args)),
        simd_(primitives<Storage>()),
        lists_(entmax_primitives<Storage>()),
        rule_(SoftmaxRule<NaturalMath<T>>::of(p_.rule)),
        q_cols_(round_up(p_.head_dim, simd_.lanes)),
        v_cols_(round_up(p_.v_head_dim, simd_.lanes)),
        scan_(args.q, args.k, p_),
        work_(size_t(p_.threads)) {
    dsink_.assign(size_t(p_.batch * p_.heads), 0);
  }

  void run() {
    const int64_t sums = p_.k_len * (q_cols_ + v_cols_) * int64_t(sizeof(T));
    for_each_wave(p_, scan_.bytes_per_unit() + sums, [this](int64_t first, int64_t last) {
      first_unit_ = first;
      num_units_ = last - first;
      if (p_.q_len > 0) scan_.begin_wave(first, last, !all_have_support(first, last));
      begin_keys();
      if (p_.q_len > 0) follow_blocks();
      store_keys();
    });
    store_dsink();
  }

 private:
  // One row, and where its pairs are in those of the block.
  struct Row {
    int64_t query;
    size_t begin, end;
  };
  // What the keys of one block of queries get, in ascending order of the keys of a row.
  struct Pairs {
    int64_t unit = 0;
    Head head{};
    std::vector<Row> rows;
    std::vector<int32_t> keys;
    std::vector<T> weights, dscores;
    std::vector<double> sink_terms;  // of the rows
  };
  struct Work {
    typename Scan::Work scan;
    std::vector<T> lambdas;
    std::vector<int32_t> keys;
    Scratch<T> q, dout, scores, weights, slopes, dvalues, dq;
    std::vector<size_t> order;
  };

  // --- blocks ---

  // Pairs that are kept at a time; those of one block may be more.
  static constexpr int64_t kMostPairs = int64_t{4} << 20;

  void follow_blocks() {
    const int64_t per_head = scan_.blocks_per_head(), all = scan_.num_heads() * per_head;
    const int64_t most_of_block = Scan::kMostRows * std::max<int64_t>(p_.k_len, 1);
    int64_t at_once = std::clamp<int64_t>(kMostPairs / most_of_block, 2, 64);
    for (int64_t begin = 0; begin < all;) {
      const int64_t count = std::min(at_once, all - begin);
      if (int64_t(pairs_.size()) < count) pairs_.resize(size_t(count));
      parallel_for(count, p_.threads, [&](int64_t n, int thread) {
        const int64_t number = begin + n;
        follow_rows(scan_.block(number / per_head, number % per_head), pairs_[size_t(n)],
                    work_[size_t(thread)]);
      });
      int64_t num_pairs = 0;
      for (int64_t n = 0; n < count; ++n) {
        num_pairs += int64_t(pairs_[size_t(n)].keys.size());
        add_sink_terms(pairs_[size_t(n)]);
      }
      follow_keys(count);
      begin += count;
      const int64_t per_block = std::max<int64_t>(1, ceil_div(num_pairs, count));
      at_once = std::clamp<int64_t>(kMostPairs / per_block, 2, 4 * at_once);
    }
  }

  void add_sink_terms(const Pairs& pairs) {
    if (!args_.dsink.is_given()) return;
    double& sum = dsink_[size_t(pairs.head.index(p_))];
    for (const double term : pairs.sink_terms) sum += term;
  }

  void store_dsink() const {
    if (!args_.dsink.is_given()) return;
    for (int64_t h = 0; h < p_.heads; ++h) {
      double sum = 0;
      for (int64_t b = 0; b < p_.batch; ++b) sum += dsink_[size_t(b * p_.heads + h)];
      static_cast<float*>(args_.dsink.data)[h * args_.dsink.strides[0]] = float(sum);
    }
  }

  // --- rows ---

  void follow_rows(const typename Scan::Block& block, Pairs& pairs, Work& work) const {
    pairs.unit = block.i / p_.group;
    pairs.head = block.head;
    pairs.rows.clear(), pairs.keys.clear(), pairs.weights.clear(), pairs.dscores.clear();
    pairs.sink_terms.clear();
    const Head& h = block.head;
    const auto given = rows_of<const T>(args_.lse, h.batch, h.head);
    work.lambdas.clear();
    for (int64_t r = 0; r < block.queries.count; ++r) {
      const int64_t query = block.queries[r];
      const T lambda = *given[query];
      work.lambdas.push_back(lambda);
      if (lambda == -std::numeric_limits<T>::infinity()) {
        Storage* const dq = rows_of<Storage>(args_.dq, h.batch, h.head)[query];
        std::fill_n(dq, p_.head_dim, Traits<Storage>::from(T(0)));
      } else if (!std::isfinite(lambda)) {
        follow_exactly(h, query, double(lambda), pairs, work);
      } else if (has_support(h, query)) {
        RowKeys<T> row = row_of_support(h, query, work);
        follow_row(h, query, lambda, row, /*is_support=*/true, pairs, work);
      }
    }
    scan_.scan(
        block, work.lambdas.data(), work.scan,
        [&](int64_t r) {
          return std::isfinite(work.lambdas[size_t(r)]) && !has_support(h, block.queries[r]);
        },
        [&](int64_t r, RowKeys<T>& row) {
          follow_row(h, block.queries[r], work.lambdas[size_t(r)], row, /*is_support=*/false, pairs,
                     work);
        });
  }

  bool has_support(const Head& h, int64_t query) const {
    return args_.support.is_given() && args_.support.row(h.batch, h.head, query)[0] != kLongSupport;
  }

  // No row of these units has to be scanned.
  bool all_have_support(int64_t first, int64_t last) const {
    if (!args_.support.is_given()) return false;
    for (int64_t i = first * p_.group; i < last * p_.group; ++i) {
      const Head h = head_of(p_, i / p_.group, i % p_.group);
      for (int64_t query = 0; query < p_.q_len; ++query) {
        if (!has_support(h, query)) return false;
      }
    }
    return true;
  }

  RowKeys<T> row_of_support(const Head& h, int64_t query, Work& work) const {
    const int32_t* const listed = args_.support.row(h.batch, h.head, query);
    work.keys.clear();
    for (int64_t n = 0; n < kSupportKeys && listed[n] != -1; ++n) {
      KEYHOLE_CHECK(listed[n] >= 0 && listed[n] < p_.k_len, "attention: support has ", listed[n],
                    " for batch ", h.batch, ", head ", h.head, ", query ", query,
                    "; accepted are the keys 0 to ", p_.k_len - 1,
                    " and -1, as the forward pass writes them");
      work.keys.push_back(listed[n]);
    }
    const int64_t count = int64_t(work.keys.size());
    RowKeys<T> row{work.scores.reserve(round_up(count, simd_.lanes) + kMaxLanes<T>),
                   work.keys.data(), count};
    const auto k = rows_of<const Storage>(args_.k, h.batch, h.kv_head);
    T* const q = work.q.reserve(q_cols_);
    simd_.load_rows(rows_of<const Storage>(args_.q, h.batch, h.head)[query], 0, 1, p_.head_dim,
                    q_cols_, rule_.fold_factor(), q, q_cols_);
    lists_.gather_dots(q, k.data, k.stride, row.keys, count, p_.head_dim, row.scores);
    if (rule_.is_bent() && count > 0) {
      std::fill_n(row.scores + count, kMaxLanes<T>, T(0));
      lists_.cap(row.scores, 0, 1, round_up(count, simd_.lanes), T(1), T(p_.rule.softcap));
    }
    for (int64_t j = 0; j < count; ++j)
      row.is_finite = row.is_finite && std::isfinite(row.scores[j]);
    return row;
  }

  // d score / d (q . k)
  template <class Number>
  Number steepness(Number score) const {
    if (!rule_.is_bent()) return Number(p_.rule.scale);
    const Number bent = score / Number(p_.rule.softcap);
    return Number(p_.rule.scale) * (1 - bent * bent);
  }
  double sink_slope(const Head& h, double lambda) const {
    if (p_.sink == nullptr) return 0;
    return EntmaxRule<EntmaxMath<double>>::of(scan_.power())
        .terms(p_.sink_of(h.head) - lambda)
        .slope;
  }

  // Weights and slopes against a lambda that was rounded when it was stored. Where a row has many
  // keys that is much beside 1 + (alpha - 1) (score - lambda). Weights add up to 1, so what
  // rounding explains is made good: lambda moves by a step, and what is left of the sum is shared.
  void weigh(const Head& h, T lambda, const RowKeys<T>& row, T* weights, T* slopes) const {
    const double sink = p_.sink != nullptr ? p_.sink_of(h.head) : -INFINITY;
    const auto rule = EntmaxRule<EntmaxMath<double>>::of(scan_.power());
    const double unit = double(std::numeric_limits<T>::epsilon()) * (1 + std::abs(double(lambda)));
    const auto weigh_at = [&](T above) {
      EntmaxSums<double> sums =
          lists_.weigh(scan_.power(), row.scores, row.count, {lambda, above}, weights, slopes);
      const auto of_sink = rule.terms(sink - double(lambda) - double(above));
      sums.weight += of_sink.weight;
      sums.slope += of_sink.slope;
      sums.count += of_sink.slope > 0 ? 1 : 0;
      return sums;
    };
    EntmaxSums<double> sums = weigh_at(0);
    const double step = lambda_step(scan_.power(), sums);
    if (std::abs(step) <= 4 * unit && step != 0) sums = weigh_at(T(step));
    if (std::abs(sums.weight - 1) > 4 * unit * sums.slope) return;
    const T share = T(1 / sums.weight);
    for (int64_t j = 0; j < row.count; ++j) weights[j] *= share;
  }

  void follow_row(const Head& h, int64_t query, T lambda, const RowKeys<T>& row, bool is_support,
                  Pairs& pairs, Work& work) const {
    const int64_t count = row.count, padded = round_up(count, simd_.lanes) + kMaxLanes<T>;
    T *const weights = work.weights.reserve(padded), *const slopes = work.slopes.reserve(padded);
    T *const dvalues = work.dvalues.reserve(padded), *const dout = work.dout.reserve(v_cols_);
    const auto k = rows_of<const Storage>(args_.k, h.batch, h.kv_head);
    const auto v = rows_of<const Storage>(args_.v, h.batch, h.kv_head);
    if (!row.is_finite) return follow_exactly(h, query, double(lambda), pairs, work);
    if (count > 0) weigh(h, lambda, row, weights, slopes);
    // At alpha = 2 a slope is 1 or 0: who has weight is for the forward pass to say.
    if (is_support && scan_.power().whole == 1) std::fill_n(slopes, count, T(1));

    const size_t begin = pairs.keys.size();
    int64_t kept = 0;  // a scan may list keys that have no weight
    for (int64_t j = 0; j < count; ++j) {
      if (slopes[j] == 0) continue;
      pairs.keys.push_back(row.keys[j]);
      weights[kept] = weights[j], slopes[kept] = slopes[j];
      row.scores[kept++] = row.scores[j];
    }
    simd_.load_rows(rows_of<const Storage>(args_.dout, h.batch, h.head)[query], 0, 1, p_.v_head_dim,
                    v_cols_, T(1), dout, v_cols_);
    const int32_t* const keys = pairs.keys.data() + begin;
    lists_.gather_dots(dout, v.data, v.stride, keys, kept, p_.v_head_dim, dvalues);
    double sum = 0, slope_sum = sink_slope(h, double(lambda));
    const double of_sink = slope_sum;
    for (int64_t j = 0; j < kept; ++j) {
      sum += double(slopes[j]) * double(dvalues[j]);
      slope_sum += double(slopes[j]);
    }
    if (!std::isfinite(sum)) {
      pairs.keys.resize(begin);
      return follow_exactly(h, query, double(lambda), pairs, work);
    }
    const double delta = slope_sum > 0 ? (sum - dlse_of(h, query)) / slope_sum : 0;
    T* const dscores = slopes;
    for (int64_t j = 0; j < kept; ++j) {
      dscores[j] = slopes[j] * T(double(dvalues[j]) - delta) * steepness(row.scores[j]);
    }
    T* const dq = work.dq.reserve(q_cols_);
    lists_.gather_sum(dscores, k.data, k.stride, keys, kept, p_.head_dim, dq);
    simd_.store_rows(dq, q_cols_, 1, p_.head_dim, nullptr,
                     rows_of<Storage>(args_.dq, h.batch, h.head)[query], 0);
    pairs.weights.insert(pairs.weights.end(), weights, weights + kept);
    pairs.dscores.insert(pairs.dscores.end(), dscores, dscores + kept);
    end_row(query, begin, -of_sink * delta, pairs, work);
  }

  // The gradient of the row's lambda: d lambda / d score = u / sum u.
  double dlse_of(const Head& h, int64_t query) const {
    const TensorView& dlse = args_.dlse;
    if (!dlse.is_given()) return 0;
    const int64_t at =
        h.batch * dlse.strides[0] + h.head * dlse.strides[1] + query * dlse.strides[2];
    return dlse.dtype == DType::f64 ? static_cast<const double*>(dlse.data)[at]
                                    : double(static_cast<const float*>(dlse.data)[at]);
  }

  // The same in fp64, for rows with something that is not finite.
  void follow_exactly(const Head& h, int64_t query, double lambda, Pairs& pairs, Work& work) const {
    const ExactRow row = exact_entmax_row<Storage>(args_.q, args_.k, p_, h, query, &lambda);
    const auto k = rows_of<const Storage>(args_.k, h.batch, h.kv_head);
    const auto v = rows_of<const Storage>(args_.v, h.batch, h.kv_head);
    const Storage* const dout = rows_of<const Storage>(args_.dout, h.batch, h.head)[query];
    const bool is_nan = std::isnan(row.lambda);
    const double of_sink =
        is_nan ? std::numeric_limits<double>::quiet_NaN() : sink_slope(h, row.lambda);
    std::vector<double> dvalues;
    double sum = 0, slope_sum = of_sink;
    for (size_t j = 0; j < row.keys.size(); ++j) {
      double dvalue = 0;
      for (int64_t x = 0; x < p_.v_head_dim; ++x) {
        dvalue += double(to_f32(dout[x])) * double(to_f32(v[row.keys[j]][x]));
      }
      dvalues.push_back(dvalue);
      sum += row.slopes[j] * dvalue;
      slope_sum += row.slopes[j];
    }
    const double delta = slope_sum == 0 ? 0 : (sum - dlse_of(h, query)) / slope_sum;
    const size_t begin = pairs.keys.size();
    std::vector<double> dq(size_t(p_.head_dim), is_nan ? delta : 0);
    for (size_t j = 0; j < row.keys.size(); ++j) {
      const double dscore = row.slopes[j] * (dvalues[j] - delta) * steepness(row.scores[j]);
      pairs.keys.push_back(row.keys[j]);
      pairs.weights.push_back(T(row.weights[j]));
      pairs.dscores.push_back(T(dscore));
      for (size_t x = 0; x < dq.size(); ++x) dq[x] += dscore * double(to_f32(k[row.keys[j]][x]));
    }
    Storage* const to = rows_of<Storage>(args_.dq, h.batch, h.head)[query];
    for (size_t x = 0; x < dq.size(); ++x) to[x] = Traits<Storage>::from(T(dq[x]));
    end_row(query, begin, -of_sink * delta, pairs, work);
  }

  void end_row(int64_t query, size_t begin, double sink_term, Pairs& pairs, Work& work) const {
    if (args_.dsink.is_given()) pairs.sink_terms.push_back(sink_term);
    pairs.rows.push_back({query, begin, pairs.keys.size()});
    if (std::is_sorted(pairs.keys.begin() + int64_t(begin), pairs.keys.end())) return;
    // Lists of a caller may be in any order.
    work.order.resize(pairs.keys.size() - begin);
    std::iota(work.order.begin(), work.order.end(), begin);
    std::sort(work.order.begin(), work.order.end(), [&](size_t a, size_t b) {
      return pairs.keys[a] != pairs.keys[b] ? pairs.keys[a] < pairs.keys[b] : a < b;
    });
    const auto reorder = [&](auto& values) {
      std::decay_t<decltype(values)> sorted;
      for (const size_t n : work.order) sorted.push_back(values[n]);
      std::copy(sorted.begin(), sorted.end(), values.begin() + int64_t(begin));
    };
    reorder(pairs.keys), reorder(pairs.weights), reorder(pairs.dscores);
  }

  // --- keys ---

  // Keys that a thread owns at a time: their sums stay in the L2 cache. Fewer would look up more
  // often where they begin in each row.
  int64_t keys_at_once() const {
    constexpr int64_t kBytes = int64_t{1} << 20;
    return std::max<int64_t>(64, kBytes / ((q_cols_ + v_cols_) * int64_t(sizeof(T))));
  }

  void begin_keys() {
    dk_.reserve(num_units_ * p_.k_len * q_cols_);
    dv_.reserve(num_units_ * p_.k_len * v_cols_);
    for_each_range([&](int64_t unit, int64_t first, int64_t last, Work&) {
      const int64_t from = unit * p_.k_len + first;
      std::fill_n(dk_.data() + from * q_cols_, (last - first) * q_cols_, T(0));
      std::fill_n(dv_.data() + from * v_cols_, (last - first) * v_cols_, T(0));
    });
  }

  template <class Visit>
  void for_each_range(Visit visit) {
    const int64_t keys = keys_at_once(), ranges = ceil_div(p_.k_len, keys);
    parallel_for(num_units_ * ranges, p_.threads, [&](int64_t item, int thread) {
      const int64_t begin = item % ranges * keys;
      visit(item / ranges, begin, std::min(begin + keys, p_.k_len), work_[size_t(thread)]);
    });
  }

  void follow_keys(int64_t num_blocks) {
    for_each_range([&](int64_t unit, int64_t first, int64_t last, Work& work) {
      T* const dk = dk_.data() + unit * p_.k_len * q_cols_;
      T* const dv = dv_.data() + unit * p_.k_len * v_cols_;
      for (int64_t n = 0; n < num_blocks; ++n) {
        const Pairs& pairs = pairs_[size_t(n)];
        if (pairs.unit != unit) continue;
        for (const Row& row : pairs.rows) {
          const auto keys = pairs.keys.begin();
          const auto begin =
              std::lower_bound(keys + int64_t(row.begin), keys + int64_t(row.end), first);
          const auto end = std::lower_bound(begin, keys + int64_t(row.end), last);
          if (begin == end) continue;
          const size_t at = size_t(begin - keys);
          lists_.scatter(pairs.weights.data() + at,
                         padded_row(args_.dout, pairs.head, row.query, v_cols_, work.dout), v_cols_,
                         &*begin, end - begin, dv, v_cols_);
          lists_.scatter(pairs.dscores.data() + at,
                         padded_row(args_.q, pairs.head, row.query, q_cols_, work.q), q_cols_,
                         &*begin, end - begin, dk, q_cols_);
        }
      }
    });
  }

  // A row of q or dout in whole vectors, in place where it is so.
  const T* padded_row(const TensorView& tensor, const Head& h, int64_t row, int64_t cols,
                      Scratch<T>& copy) const {
    const Storage* const from = rows_of<const Storage>(tensor, h.batch, h.head)[row];
    if constexpr (std::is_same_v<Storage, T>) {
      if (tensor.shape[3] == cols) return from;
    }
    simd_.load_rows(from, 0, 1, tensor.shape[3], cols, T(1), copy.reserve(cols), cols);
    return copy.data();
  }

  void store_keys() {
    for_each_range([&](int64_t unit, int64_t first, int64_t last, Work&) {
      const Head h = head_of(p_, first_unit_ + unit, 0);
      const auto dk = rows_of<Storage>(args_.dk, h.batch, h.kv_head);
      const auto dv = rows_of<Storage>(args_.dv, h.batch, h.kv_head);
      const int64_t from = unit * p_.k_len + first;
      simd_.store_rows(dk_.data() + from * q_cols_, q_cols_, last - first, p_.head_dim, nullptr,
                       dk[first], dk.stride);
      simd_.store_rows(dv_.data() + from * v_cols_, v_cols_, last - first, p_.v_head_dim, nullptr,
                       dv[first], dv.stride);
    });
  }

  const BackwardArgs& args_;
  const Problem p_;
  const Primitives<Storage>& simd_;
  const EntmaxPrimitives<Storage>& lists_;
  const SoftmaxRule<NaturalMath<T>> rule_;
  const int64_t q_cols_, v_cols_;  // head_dim and v_head_dim, rounded up to whole vectors
  Scan scan_;
  std::vector<Work> work_;     // [threads]
  std::vector<Pairs> pairs_;   // of the blocks at hand
  std::vector<double> dsink_;  // [batch * heads]
  int64_t first_unit_ = 0, num_units_ = 0;
  Scratch<T> dk_, dv_;  // [units of the wave][k_len]
};

}  // namespace

template <class Storage>
void entmax_backward(const BackwardArgs& args) {
  EntmaxBackward<Storage>(args).run();
}

template void entmax_backward<float>(const BackwardArgs&);
template void entmax_backward<double>(const BackwardArgs&);
template void entmax_backward<Half>(const BackwardArgs&);
template void entmax_backward<BFloat16>(const BackwardArgs&);

template <class Storage>
void entmax_backward_on_amx(const BackwardArgs& args) {
  EntmaxBackward<Storage, true>(args).run();
}
template void entmax_backward_on_amx<Half>(const BackwardArgs&);
template void entmax_backward_on_amx<BFloat16>(const BackwardArgs&);

}  // namespace keyhole::cpu
