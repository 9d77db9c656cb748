// src/kernels/cpu/entmax_scan.h
// Which keys of a row may have weight: the scores of all keys that it attends to, in all parts of
// the plan, reduced to a short list. Forward and backward both begin here.
//
//   a plan of one part of tiles   blocks of queries: strips of scores by the matrix product, of
//   which
//                                 each row keeps what is not below its bound
//   anything else, long rows      one row at a time, by gathered keys
//
// The bound of a row begins with the largest scores of its first strip (base/entmax.h), and rises
// with the lambda of its list when that is full. The wider the strip, the better the first bound,
// and the fewer keys a row takes in. 16-bit products are made on AMX tiles where a kernel says so
// (kOnAmx); sums are in fp32 either way. Memory: a list has kRoom places in a block, and as many as
// the row has keys where it is alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "base/entmax.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/entmax_primitives.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/pack_words.h"
#include "kernels/cpu/plan_pairs.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/problem.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/tile_walk.h"

namespace keyhole::cpu {

// The keys of one row that may have weight, in the order of the plan. After them is room for one
// more score, that of a sink, and for a vector.
template <class T>
struct RowKeys {
  T* scores = nullptr;
  int32_t* keys = nullptr;
  int64_t count = 0;
  T at_least = -std::numeric_limits<T>::infinity();  // a lower bound of lambda
  bool is_finite = true;  // false: a score is NaN or infinite, and the list may be incomplete
};

template <class Storage, bool kOnAmx>
class EntmaxScan {
  using T = typename Traits<Storage>::Compute;
  using Packed = std::conditional_t<kOnAmx, uint32_t, T>;  // of keys (amx.h)
  static constexpr DType kType = Traits<Storage>::dtype;

 public:
  static constexpr int64_t kMostRows = 64;  // of a block: the height of the tallest tile

  // Some queries of one head.
  struct Block {
    int64_t i;  // head, counted in the wave
    Head head;
    SpacedRows queries;
    int32_t c = 0, q_tile = 0;  // for tiles
  };

  // The state of a thread.
  struct Work {
    Scratch<T> q, strip;
    Scratch<Storage> stored_q;  // [kMostRows][depth_], for AMX
    Scratch<T> scores, bound;   // [kMostRows][kRoom], [kMostRows]
    std::vector<T> lambda;      // of each list, when it was last made shorter
    Scratch<int32_t> keys;
    std::vector<int64_t> count, limit;  // limit: of a list, before it is made shorter
    std::vector<bool> is_alone;         // rows that do not fit, or are not finite
    std::vector<T> sorted;
    std::vector<int32_t> equal_keys;
    std::vector<int32_t> row_keys;  // of one row, and their scores
    Scratch<T> row_scores;
    Prefetch soon;
  };

  EntmaxScan(const TensorView& q, const TensorView& k, const Problem& problem)
      : q_(q),
        k_(k),
        p_(problem),
        simd_(primitives<Storage>()),
        lists_(entmax_primitives<Storage>()),
        power_(EntmaxPower::of(p_.rule.normalizer.alpha)),
        top_k_(p_.rule.normalizer.top_k),
        rule_(SoftmaxRule<NaturalMath<T>>::of(p_.rule)),
        q_cols_(round_up(p_.head_dim, simd_.lanes)),
        depth_(amx::padded_depth(p_.head_dim)),
        follows_tiles_(is_one_part_of_tiles()) {}

  const EntmaxPower& power() const { return power_; }
  // The score below which a key has no weight against this lambda; a little lower, for rounding.
  T lowest_score(T lambda) const { return keyhole::lowest_score(power_, lambda); }
  int64_t bytes_per_unit() const {
    if (!follows_tiles_) return 0;
    return panels_per_unit() * panel_size() * int64_t(sizeof(Packed));
  }

  // Packs the keys of the units of a wave, for `scan`.
  void begin_wave(int64_t first, int64_t last, bool will_scan = true) {
    first_unit_ = first;
    num_units_ = last - first;
    if (!follows_tiles_ || !will_scan) return;
    const RowMap map = RowMap::of_keys(view());
    packed_.reserve(num_units_ * panels_per_unit() * panel_size());
    parallel_for(num_units_ * panels_per_unit(), p_.threads, [&](int64_t item, int) {
      const Head head = head_of(p_, first_unit_ + item / panels_per_unit(), 0);
      const auto k = rows_of<const Storage>(k_, head.batch, head.kv_head);
      const int64_t begin = item % panels_per_unit() * kPanel;
      Packed* const to = packed_.data() + item * panel_size();
      if constexpr (kOnAmx) {
        pack_word_columns(simd_, map, k, p_.head_dim, begin, to);
      } else {
        pack_columns(simd_, map, k, p_.head_dim, begin, rule_.fold_factor(), to);
      }
    });
  }

  int64_t num_heads() const { return num_units_ * p_.group; }
  Head head(int64_t i) const { return head_of(p_, first_unit_ + i / p_.group, i % p_.group); }

  // The blocks of a head, each query in exactly one of them.
  int64_t blocks_per_head() const {
    if (follows_tiles_) return int64_t{view().classes} * view().q_tiles;
    return ceil_div(p_.q_len, kRowsAlone);
  }
  Block block(int64_t i, int64_t number) const {
    Block made{i, head(i), {}, 0, 0};
    if (!follows_tiles_) {
      const int64_t begin = number * kRowsAlone;
      made.queries = {begin, 1, std::min(kRowsAlone, p_.q_len - begin)};
      return made;
    }
    made.c = int32_t(number / view().q_tiles);
    made.q_tile = int32_t(number % view().q_tiles);
    const ResidueClass& residue = view().residues[made.c];
    const int64_t first = int64_t{made.q_tile} * view().tile.q;
    made.queries = {residue.first_q + view().stride * first, view().stride,
                    std::clamp<int64_t>(residue.num_q - first, 0, view().tile.q)};
    return made;
  }
  // The same with the longest lists first, so that threads finish together.
  Block block_by_length(int64_t i, int64_t place) const {
    const int32_t group = follows_tiles_ ? view().group_of[head(i).index(p_)] : -1;
    return block(i, group < 0 ? place : view().order[group * blocks_per_head() + place]);
  }

  // Calls use(r, keys) for every query r of the block, in ascending order, that is wanted.
  // lambdas: of each query, if they are known already; else null.
  template <class Wanted, class Use>
  void scan(const Block& block, const T* lambdas, Work& work, Wanted wanted, Use use) const {
    int64_t num_wanted = 0;
    for (int64_t r = 0; r < block.queries.count; ++r) num_wanted += wanted(r) ? 1 : 0;
    if (num_wanted == 0) return;
    const auto bound_of = [&](int64_t r) {
      return lambdas == nullptr ? kLowest : lowest_score(lambdas[r]);
    };
    // One row alone is not worth the scores of a whole block.
    const bool is_block = follows_tiles_ && (num_wanted > 1 || block.queries.count == 1);
    if (is_block) scan_tiles(block, bound_of, lambdas != nullptr, work);
    for (int64_t r = 0; r < block.queries.count; ++r) {
      if (!wanted(r)) continue;
      RowKeys<T> row;
      if (is_block && !work.is_alone[size_t(r)]) {
        row = {work.scores.data() + r * kRoom, work.keys.data() + r * kRoom, work.count[size_t(r)],
               work.lambda[size_t(r)]};
        const ResidueClass& residue = view().residues[block.c];
        for (int64_t j = 0; j < row.count; ++j) {
          row.keys[j] = int32_t(residue.first_k + view().stride * int64_t{row.keys[j]});
        }
      } else {
        row = scan_row(block.head, block.queries[r], bound_of(r), work);
      }
      finish_row(row, work);
      use(r, row);
    }
  }

 private:
  struct Nothing {};
  static constexpr T kLowest = std::numeric_limits<T>::lowest();
  // Of a row in a block. Lists that begin a power of 2 apart would share their cache sets.
  static constexpr int64_t kMostListed = 8192;
  static constexpr int64_t kRoom = kMostListed + kScanKeys + 2 * kMaxLanes<T>;
  static constexpr int64_t kShortList = 32;  // that is not worth shortening
  static constexpr int64_t kMore = 24;  // keys that a list takes in before it is shortened again
  static constexpr int64_t kRowsAlone = 16;  // of a block whose rows are scanned one by one

  const TileView& view() const { return p_.plan.tiles[0]; }
  int64_t panel_size() const { return (kOnAmx ? depth_ / 2 : p_.head_dim) * kPanel; }
  // What products in a strip are multiplied with: packed keys have it, but 16 bits have no room.
  T factor() const { return kOnAmx ? T(rule_.fold_factor()) : T(1); }
  int64_t panels_per_unit() const { return ceil_div(RowMap::of_keys(view()).rows(), kPanel); }

  bool is_one_part_of_tiles() const {
    if (p_.plan.tiles.size() != 1 || !p_.plan.gathers.empty()) return false;
    int64_t rows = 0;
    for (int32_t c = 0; c < view().classes; ++c) rows += view().residues[c].num_q;
    return rows == p_.q_len;
  }

  // Rows of q in place, or copied if they cannot be read in place.
  Rows<const T> query_rows(const Block& block, Work& work) const {
    const auto q = rows_of<const Storage>(q_, block.head.batch, block.head.head);
    const SpacedRows& queries = block.queries;
    if constexpr (std::is_same_v<Storage, T>) {
      if (reads_in_place<Storage>(q_, queries.stride, simd_.lanes)) {
        return {q[queries.first], q.stride * queries.stride};
      }
    }
    simd_.load_rows(q[queries.first], q.stride * queries.stride, queries.count, p_.head_dim,
                    q_cols_, T(1), work.q.reserve(kMostRows * q_cols_), q_cols_);
    return {work.q.data(), q_cols_};
  }

  template <class BoundOf>
  void scan_tiles(const Block& block, BoundOf bound_of, bool knows_lambdas, Work& work) const {
    const int64_t rows = block.queries.count;
    work.strip.reserve(kScanRows * kScanStride + kPanel);  // a row is read by whole words
    work.scores.reserve(kMostRows * kRoom);
    work.keys.reserve(kMostRows * kRoom);
    work.bound.reserve(kMostRows);
    work.count.assign(size_t(rows), 0);
    work.limit.assign(size_t(rows), knows_lambdas ? kMostListed : kShortList);
    work.lambda.assign(size_t(rows), -std::numeric_limits<T>::infinity());
    work.is_alone.assign(size_t(rows), false);
    for (int64_t r = 0; r < rows; ++r) work.bound[r] = bound_of(r);
    const Candidates<T> to = {work.scores.data(), work.keys.data(),  kRoom,
                              work.count.data(),  work.bound.data(), work.lambda.data()};
    // Bounds that come from lambdas are as high as they can be.
    const FirstBound unknown = {power_, top_k_};
    const FirstBound* const first_bound = knows_lambdas ? nullptr : &unknown;
    [[maybe_unused]] const std::conditional_t<kOnAmx, amx::Tiles, Nothing> session;
    Rows<const T> q{};
    if constexpr (kOnAmx) {
      const auto from = rows_of<const Storage>(q_, block.head.batch, block.head.head);
      copy_rows(from[block.queries.first], from.stride * block.queries.stride, rows, p_.head_dim,
                work.stored_q.reserve(kMostRows * depth_), depth_);
    } else {
      q = query_rows(block, work);
    }
    const T factor = rule_.is_bent() ? T(1) : this->factor();
    const int32_t group = view().group_of[block.head.index(p_)];
    for_each_strip(list_of(view(), group, block.c, block.q_tile), view().tile.k, kScanKeys,
                   [&](const Strip& strip) {
                     for (int64_t first = 0; first < rows; first += kScanRows) {
                       const int64_t some = std::min(kScanRows, rows - first);
                       score(strip, q, block, first, some, work);
                       for (const Strip::Piece& piece : strip.pieces()) {
                         lists_.collect(work.strip.data() + piece.col, kScanStride, some,
                                        piece.count, factor, int32_t(piece.row), first_bound,
                                        to.from_row(first));
                       }
                     }
                     for (int64_t r = 0; r < rows; ++r) {
                       if (work.count[size_t(r)] > work.limit[size_t(r)]) shorten(r, work);
                     }
                   });
  }

  // Of `rows` queries of the block, from `first` on.
  void score(const Strip& strip, const Rows<const T>& q, const Block& block, int64_t first,
             int64_t rows, Work& work) const {
    const int64_t unit = block.i / p_.group;
    const int64_t first_key = int64_t{block.c} * view().k_tiles * view().tile.k;
    const Packed* const panels = packed_.data() + unit * panels_per_unit() * panel_size();
    for (const Strip::Piece& piece : strip.pieces()) {
      for (int64_t done = 0; done < piece.count;) {
        const int64_t key = first_key + piece.row + done, col = key % kPanel;
        const int64_t cols = std::min(piece.count - done, kPanel - col);
        const Packed* const keys = panels + key / kPanel * panel_size() + col;
        T* const scores = work.strip.data() + piece.col + done;
        if constexpr (kOnAmx) {
          amx::multiply(kType, {.rows = amx::padded_rows(rows),
                                .cols = cols,
                                .depth = depth_,
                                .a = bits_of(work.stored_q.data()) + first * depth_,
                                .a_stride = depth_,
                                .b = keys,
                                .b_stride = kPanel,
                                .c = scores,
                                .c_stride = kScanStride});
        } else {
          simd_.gemm({.rows = rows,
                      .cols = cols,
                      .depth = p_.head_dim,
                      .a = q.data + first * q.stride,
                      .a_stride = q.stride,
                      .b = keys,
                      .b_stride = kPanel,
                      .c = scores,
                      .c_stride = kScanStride,
                      .meanwhile = &work.soon});
        }
        done += cols;
      }
    }
    if (rule_.is_bent()) {
      lists_.cap(work.strip.data(), kScanStride, rows, strip.cols, factor(), T(p_.rule.softcap));
    }
    const int64_t words = words_per_row(view().tile.k);
    for (const Strip::Partial& partial : strip.partials()) {
      simd_.mask(work.strip.data() + partial.col, kScanStride, rows, view().tile.k,
                 view().bitmaps + (partial.bitmap * view().tile.q + first) * words, words);
    }
  }

  // --- one row ---

  RowKeys<T> scan_row(const Head& h, int64_t query, T bound, Work& work) const {
    work.row_keys.clear();
    for_each_key(p_.plan, h.index(p_), query,
                 [&](int64_t key) { work.row_keys.push_back(int32_t(key)); });
    const int64_t all = int64_t(work.row_keys.size());
    const int64_t padded = round_up(all + 1, simd_.lanes) + kMaxLanes<T>;  // 1: a sink
    T* const scores = work.row_scores.reserve(padded);
    work.row_keys.resize(size_t(padded));
    T* const q = work.q.reserve(kMostRows * q_cols_);
    simd_.load_rows(rows_of<const Storage>(q_, h.batch, h.head)[query], 0, 1, p_.head_dim, q_cols_,
                    rule_.fold_factor(), q, q_cols_);
    const auto k = rows_of<const Storage>(k_, h.batch, h.kv_head);
    lists_.gather_dots(q, k.data, k.stride, work.row_keys.data(), all, p_.head_dim, scores);
    if (rule_.is_bent()) {
      std::fill(scores + all, scores + round_up(all, simd_.lanes), T(0));
      lists_.cap(scores, 0, 1, round_up(all, simd_.lanes), T(1), T(p_.rule.softcap));
    }
    if (!power_.is_softmax()) {
      for (int64_t j = 0; j < all; ++j) {
        if (scores[j] - T(power_.reach()) > bound) bound = scores[j] - T(power_.reach());
      }
    }
    RowKeys<T> row{scores, work.row_keys.data(), 0};
    for (int64_t j = 0; j < all; ++j) {
      if (scores[j] < bound) continue;  // a NaN stays
      row.scores[row.count] = scores[j];
      row.keys[row.count++] = row.keys[j];
    }
    return row;
  }

  // --- lists ---

  static bool is_finite(const RowKeys<T>& row) {
    return std::all_of(row.scores, row.scores + row.count,
                       [](T score) { return std::isfinite(score); });
  }

  // Drops what can have no weight. A row that stays too long, or is not finite, is scanned alone.
  void shorten(int64_t r, Work& work) const {
    RowKeys<T> row = {work.scores.data() + r * kRoom, work.keys.data() + r * kRoom,
                      work.count[size_t(r)]};
    // One that is not finite shows in lambda, but keep_top puts scores in order.
    const bool is_ordered = top_k_ == 0 || is_finite(row);
    if (!work.is_alone[size_t(r)] && is_ordered && set_bound(r, row, work)) {
      // Little is dropped from a list that is about as long as it needs to be.
      const bool is_worth_it = 4 * row.count < 3 * work.count[size_t(r)];
      work.count[size_t(r)] = row.count;
      const int64_t more = is_worth_it ? std::max(kMore, row.count / 2) : row.count;
      work.limit[size_t(r)] = std::min(kMostListed, row.count + more);
      if (row.count < kMostListed) return;
    }
    work.is_alone[size_t(r)] = true;
    work.count[size_t(r)] = 0;
    work.limit[size_t(r)] = 0;
    work.bound[r] = std::numeric_limits<T>::infinity();  // takes in NaN and +inf alone
  }

  // Raises the bound of row r as far as its list tells, and drops what is below. False: a score is
  // not finite.
  bool set_bound(int64_t r, RowKeys<T>& row, Work& work) const {
    T bound = work.bound[r];
    if (top_k_ > 0) bound = std::max(bound, keep_top(row, work));
    if (!power_.is_softmax()) {
      T& lambda = work.lambda[size_t(r)];
      lambda = lambda == -std::numeric_limits<T>::infinity()
                   ? lists_.solve(power_, row.scores, row.count, lambda).value()
                   : lists_.raise(power_, row.scores, row.count, lambda);
      if (!std::isfinite(lambda)) return false;
      bound = std::max(bound, lowest_score(lambda));
      row.count = lists_.drop(row.scores, row.keys, row.count, bound);
    }
    work.bound[r] = bound;
    return true;
  }

  // The top_k first keys in the order of base/entmax.h; gives the last one's score.
  T keep_top(RowKeys<T>& row, Work& work) const {
    if (row.count <= top_k_) return kLowest;
    work.sorted.assign(row.scores, row.scores + row.count);
    const auto place = work.sorted.begin() + (top_k_ - 1);
    std::nth_element(work.sorted.begin(), place, work.sorted.end(), std::greater<>());
    const T last = *place;
    // Of the keys with the last score, the smallest are taken. Lists may name a key twice, in any
    // order.
    const int64_t before = std::count_if(work.sorted.begin(), place, [&](T s) { return s > last; });
    const int64_t left = top_k_ - before;
    int32_t last_key = std::numeric_limits<int32_t>::max();
    int64_t copies = 0;  // of last_key that are taken
    work.equal_keys.clear();
    for (int64_t j = 0; j < row.count; ++j) {
      if (row.scores[j] == last) work.equal_keys.push_back(row.keys[j]);
    }
    if (int64_t(work.equal_keys.size()) > left) {
      const auto last_place = work.equal_keys.begin() + (left - 1);
      std::nth_element(work.equal_keys.begin(), last_place, work.equal_keys.end());
      last_key = *last_place;
      copies = std::count(work.equal_keys.begin(), last_place + 1, last_key);
    }
    drop(row, [&](T score, int32_t key) {
      if (score != last) return score < last;
      return key != last_key ? key > last_key : copies-- <= 0;
    });
    return last;
  }

  template <class IsDropped>
  static void drop(RowKeys<T>& row, IsDropped is_dropped) {
    int64_t kept = 0;
    for (int64_t j = 0; j < row.count; ++j) {
      if (is_dropped(row.scores[j], row.keys[j])) continue;
      row.scores[kept] = row.scores[j];
      row.keys[kept++] = row.keys[j];
    }
    row.count = kept;
  }

  void finish_row(RowKeys<T>& row, Work& work) const {
    row.is_finite = is_finite(row);
    if (row.is_finite && top_k_ > 0) keep_top(row, work);
  }

  const TensorView& q_;
  const TensorView& k_;
  const Problem& p_;
  const Primitives<Storage>& simd_;
  const EntmaxPrimitives<Storage>& lists_;
  const EntmaxPower power_;
  const int64_t top_k_;
  const SoftmaxRule<NaturalMath<T>> rule_;  // of scores: softcap and scale
  const int64_t q_cols_;                    // head_dim, rounded up to whole vectors
  const int64_t depth_;                     // head_dim, rounded up to whole AMX tiles
  const bool follows_tiles_;

  int64_t first_unit_ = 0, num_units_ = 0;
  Scratch<Packed> packed_;  // [units][panels][head_dim][kPanel], or [head_dim / 2] words
};

}  // namespace keyhole::cpu
