// src/kernels/cpu/forward.cpp
// A work item is one query tile (or a few gathered queries) of one head, done by one thread in the
// order of its list: the same bits for any number of threads. Keys and values are packed before,
// for as many heads as fit the memory set aside; with several parts a row's state is kept between
// them.
#include "kernels/cpu/forward.h"

#include <cmath>
#include <limits>
#include <vector>

#include "base/bits.h"
#include "kernels/cpu/exact.h"
#include "kernels/cpu/key_panels.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/problem.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/tile_walk.h"

namespace keyhole::cpu {
namespace {

constexpr int64_t kMostRows = 64;  // of the tallest tile offered
constexpr int64_t kGatherQueriesPerItem = 16;

template <class Storage>
class ForwardPass {
  using T = typename Traits<Storage>::Compute;
  static constexpr T kNever = -std::numeric_limits<T>::infinity();

  // What a thread works on: some rows of queries, their scores, and the softmax so far.
  struct Work {
    Scratch<T> q, scores, out, max, sum;
    void reserve(int64_t q_cols, int64_t out_cols) {
      q.reserve(kMostRows * q_cols);
      scores.reserve(kMostRows * kStripStride);
      out.reserve(kMostRows * out_cols);
      max.reserve(kMostRows);
      sum.reserve(kMostRows * kMaxLanes<T>);
    }
  };

 public:
  explicit ForwardPass(const ForwardArgs& args)
      : args_(args),
        p_(problem_of(args)),
        simd_(primitives<Storage>()),
        q_cols_(round_up(p_.head_dim, simd_.lanes)),
        out_cols_(round_up(p_.v_head_dim, simd_.lanes)),
        keeps_state_(!one_part_writes_all()),
        panels_(args_, p_),
        work_(size_t(p_.threads)) {
    for (Work& work : work_) work.reserve(q_cols_, out_cols_);
  }

  void run() {
    if (p_.q_len == 0) return;
    for_each_wave(p_, bytes_per_unit(), [this](int64_t first, int64_t last) {
      first_unit_ = first;
      num_units_ = last - first;
      if (keeps_state_) begin_states();
      for (size_t part = 0; part < p_.plan.tiles.size(); ++part) follow_tiles(int64_t(part));
      for (const GatherView& view : p_.plan.gathers) follow_gather(view);
      if (keeps_state_) finish_states();
    });
  }

 private:
  // A single part may write results as it goes, when every query is in it.
  bool one_part_writes_all() const {
    if (p_.num_parts() != 1) return false;
    if (!p_.plan.gathers.empty()) return true;
    const TileView& view = p_.plan.tiles[0];
    int64_t rows = 0;
    for (int32_t c = 0; c < view.classes; ++c) rows += view.residues[c].num_q;
    return rows == p_.q_len;
  }

  int64_t bytes_per_unit() const {
    int64_t most = panels_.bytes_per_unit() / int64_t(sizeof(T));
    if (!p_.plan.gathers.empty()) {
      const int64_t key = is_gathered_in_place(p_.head_dim, q_cols_) ? 0 : q_cols_;
      const int64_t value = is_gathered_in_place(p_.v_head_dim, out_cols_) ? 0 : out_cols_;
      most = std::max(most, p_.k_len * (key + value));
    }
    if (keeps_state_) most += p_.group * p_.q_len * (out_cols_ + 2);
    return most * int64_t(sizeof(T));
  }

  int64_t heads_in_wave() const { return num_units_ * p_.group; }
  Head head_in_wave(int64_t i) const {
    return head_of(p_, first_unit_ + i / p_.group, i % p_.group);
  }

  // --- a row's state: kept between parts, or finished at once ---

  struct State {
    T* out;  // [out_cols_]  not yet divided by the sum
    T* max;
    T* sum;
  };
  State kept_state(int64_t head, int64_t query) const {
    const int64_t row = head * p_.q_len + query;
    return {state_out_.data() + row * out_cols_, state_max_.data() + row, state_sum_.data() + row};
  }
  void begin_states() {
    const int64_t rows = heads_in_wave() * p_.q_len;
    std::fill_n(state_out_.reserve(rows * out_cols_), rows * out_cols_, T(0));
    std::fill_n(state_max_.reserve(rows), rows, kNever);
    std::fill_n(state_sum_.reserve(rows), rows, T(0));
  }
  void finish_states() {
    parallel_for(ceil_div(heads_in_wave() * p_.q_len, kMostRows), p_.threads,
                 [&](int64_t item, int) {
                   const int64_t begin = item * kMostRows;
                   const int64_t end = std::min(begin + kMostRows, heads_in_wave() * p_.q_len);
                   for (int64_t row = begin; row < end; ++row) {
                     const State state = kept_state(0, row);
                     finish_row(head_in_wave(row / p_.q_len), row % p_.q_len, state.out, *state.max,
                                *state.sum);
                   }
                 });
  }

  void begin_row(Work& work, int64_t row, int64_t head, int64_t query) const {
    T* out = work.out.data() + row * out_cols_;
    T* sums = work.sum.data() + row * kMaxLanes<T>;
    std::fill_n(sums, kMaxLanes<T>, T(0));
    work.max[row] = kNever;
    if (keeps_state_) {
      const State state = kept_state(head, query);
      std::copy_n(state.out, out_cols_, out);
      work.max[row] = *state.max;
      sums[0] = *state.sum;
    } else {
      std::fill_n(out, out_cols_, T(0));
    }
  }
  void end_rows(Work& work, int64_t rows, int64_t head, auto query_of) const {
    T* sums = work.scores.data();  // no longer needed
    simd_.sum_lanes(work.sum.data(), rows, sums);
    for (int64_t row = 0; row < rows; ++row) {
      T* out = work.out.data() + row * out_cols_;
      if (keeps_state_) {
        const State state = kept_state(head, query_of(row));
        std::copy_n(out, out_cols_, state.out);
        *state.max = work.max[row];
        *state.sum = sums[row];
      } else {
        finish_row(head_in_wave(head), query_of(row), out, work.max[row], sums[row]);
      }
    }
  }

  // out / sum and lse, with the sink as one more key without a value.
  void finish_row(const Head& head, int64_t query, const T* out, T max, T sum) const {
    T top = max, share = 1, total = sum;  // exp(max - top); the sum against top
    if (p_.sink != nullptr) {
      const T sink = T(p_.sink_of(head.head) * kLog2E);
      top = std::max(max, sink);
      share = max == kNever ? T(0) : std::exp2(max - top);
      total = share * sum + (sink == kNever ? T(0) : std::exp2(sink - top));
    }
    const bool is_empty = total == 0;
    const T lse = is_empty ? kNever : (top + std::log2(total)) * T(1 / kLog2E);
    const bool is_finite =
        simd_.store_row(out, is_empty ? T(0) : share / total, p_.v_head_dim,
                        rows_of<Storage>(args_.out, head.batch, head.head)[query]);
    if (!is_finite || !(is_empty || std::isfinite(lse))) [[unlikely]] {
      return exact_forward_row<Storage>(args_, head.batch, head.head, query);
    }
    if (args_.lse.is_given()) *rows_of<T>(args_.lse, head.batch, head.head)[query] = lse;
  }

  // --- tiles ---

  void follow_tiles(int64_t part) {
    const TileView& view = p_.plan.tiles[size_t(part)];
    panels_.begin_part(part, first_unit_, num_units_);
    const int64_t lists = int64_t{view.classes} * view.q_tiles;
    const int64_t at_once = lists_per_item(view);
    const int64_t items = ceil_div(lists, at_once);
    parallel_for(heads_in_wave() * items, p_.threads, [&](int64_t item, int thread) {
      const int64_t head = item / items, begin = item % items * at_once;
      const int32_t group = view.group_of[head_in_wave(head).index(p_)];
      for (int64_t place = begin; place < std::min(begin + at_once, lists); ++place) {
        const int64_t list = group < 0 ? place : view.order[group * lists + place];
        follow_list(view, group, head, int32_t(list / view.q_tiles), int32_t(list % view.q_tiles),
                    thread);
      }
    });
  }

  // Neighbouring lists want the same panels: a thread that keeps them takes several at once, if
  // there are enough for all threads of a usual machine.
  int64_t lists_per_item(const TileView& view) const {
    constexpr int64_t kRows = 512, kItems = 64;
    if (!panels_.is_cached()) return 1;
    const int64_t lists = heads_in_wave() * view.classes * view.q_tiles;
    return std::clamp<int64_t>(lists / kItems, 1, kRows / view.tile.q);
  }

  void follow_list(const TileView& view, int32_t group, int64_t head, int32_t c, int32_t q_tile,
                   int thread) {
    Work& work = work_[size_t(thread)];
    const ResidueClass& residue = view.residues[c];
    const int64_t first_row = int64_t{q_tile} * view.tile.q;
    const int64_t rows = std::min<int64_t>(view.tile.q, residue.num_q - first_row);
    const auto query = [&](int64_t row) {
      return residue.first_q + view.stride * (first_row + row);
    };
    const auto list = list_of(view, group, c, q_tile);
    if (rows <= 0 || (keeps_state_ && list.empty())) return;

    const Head h = head_in_wave(head);
    const auto q = rows_of<const Storage>(args_.q, h.batch, h.head);
    simd_.load_rows(q[query(0)], q.stride * view.stride, rows, p_.head_dim, q_cols_,
                    T(p_.score_factor()), work.q.data(), q_cols_);
    for (int64_t row = 0; row < rows; ++row) begin_row(work, row, head, query(row));
    const int64_t first_key = int64_t{c} * view.k_tiles * view.tile.k;
    for_each_strip(list, view.tile.k, kStripKeys, [&](const Strip& strip) {
      score(strip, view, head / p_.group, first_key, rows, thread);  // s = q . k, masked
      absorb(strip.cols, rows, work);                                // p = exp(s - max)
      add_values(strip, view, head / p_.group, c, rows, thread);     // o += p . v
    });
    end_rows(work, rows, head, query);
  }

  void score(const Strip& strip, const TileView& view, int64_t unit, int64_t first_key,
             int64_t rows, int thread) {
    Work& work = work_[size_t(thread)];
    for (const Strip::Piece& piece : strip.pieces()) {
      for (int64_t done = 0; done < piece.count;) {
        const int64_t key = first_key + piece.row + done, col = key % kPanel;
        const int64_t cols = std::min(piece.count - done, kPanel - col);
        simd_.gemm({.rows = rows,
                    .cols = cols,
                    .depth = p_.head_dim,
                    .a = work.q.data(),
                    .a_stride = q_cols_,
                    .b = panels_.keys(unit, key / kPanel, thread) + col,
                    .b_stride = kPanel,
                    .c = work.scores.data() + piece.col + done,
                    .c_stride = kStripStride});
        done += cols;
      }
    }
    if (p_.softcap > 0) {
      simd_.softcap(work.scores.data(), kStripStride, rows, strip.cols, T(p_.cap_base_2()));
    }
    const int64_t words = words_per_row(view.tile.k);
    for (const Strip::Partial& partial : strip.partials()) {
      simd_.mask(work.scores.data() + partial.col, kStripStride, rows, view.tile.k,
                 view.bitmaps + partial.bitmap * view.tile.q * words, words);
    }
  }

  void absorb(int64_t cols, int64_t rows, Work& work) const {
    simd_.softmax({.rows = rows,
                   .cols = cols,
                   .scores = work.scores.data(),
                   .stride = kStripStride,
                   .max = work.max.data(),
                   .sum = work.sum.data(),
                   .out = work.out.data(),
                   .out_stride = out_cols_,
                   .out_cols = out_cols_});
  }

  void add_values(const Strip& strip, const TileView& view, int64_t unit, int32_t c, int64_t rows,
                  int thread) {
    for (const Strip::Piece& piece : strip.pieces()) {
      const int64_t first_key = int64_t{c} * view.k_tiles * view.tile.k + piece.row;
      const int64_t real = std::min(piece.count, view.residues[c].num_k - piece.row);
      for (int64_t done = 0; done < real;) {
        const Values<T> values = panels_.values(unit, first_key + done, real - done, thread);
        const T* weights = work_[size_t(thread)].scores.data() + piece.col + done;
        for (int64_t col = 0; col < out_cols_; col += kPanel) {
          simd_.gemm({.rows = rows,
                      .cols = std::min(kPanel, out_cols_ - col),
                      .depth = values.count,
                      .a = weights,
                      .a_stride = kStripStride,
                      .b = values.data + col / kPanel * values.column_step,
                      .b_stride = values.stride,
                      .b_panel = values.panel_step,
                      .c = work_[size_t(thread)].out.data() + col,
                      .c_stride = out_cols_,
                      .accumulate = true});
        }
        done += values.count;
      }
    }
  }

  // --- gathered keys ---

  // Rows to gather from: those of a tensor where they can be computed with as they lie (whole
  // vectors of the compute type), else a packed copy.
  struct GatherRows {
    const T* data;
    int64_t stride;
  };
  static bool is_gathered_in_place(int64_t head_dim, int64_t cols) {
    return std::is_same_v<Storage, T> && head_dim == cols;
  }
  GatherRows gather_rows(const TensorView& tensor, const Head& head, int64_t head_dim, int64_t cols,
                         const T* packed) const {
    if constexpr (std::is_same_v<Storage, T>) {
      if (is_gathered_in_place(head_dim, cols)) {
        const auto rows = rows_of<const T>(tensor, head.batch, head.kv_head);
        return {rows.data, rows.stride};
      }
    }
    return {packed, cols};
  }

  void pack_gather() {
    const bool has_keys = is_gathered_in_place(p_.head_dim, q_cols_);
    const bool has_values = is_gathered_in_place(p_.v_head_dim, out_cols_);
    const RowMap map = RowMap::plain(p_.k_len);
    keys_per_unit_ = p_.k_len * q_cols_;
    values_per_unit_ = p_.k_len * out_cols_;
    if (!has_keys) keys_.reserve(num_units_ * keys_per_unit_);
    if (!has_values) values_.reserve(num_units_ * values_per_unit_);
    if (has_keys && has_values) return;
    const int64_t steps = ceil_div(p_.k_len, kPanel);
    parallel_for(num_units_ * steps, p_.threads, [&](int64_t item, int) {
      const int64_t unit = item / steps, begin = item % steps * kPanel;
      const int64_t rows = std::min(kPanel, p_.k_len - begin);
      const Head head = head_of(p_, first_unit_ + unit, 0);
      if (!has_keys) {
        load_packed(simd_, map, rows_of<const Storage>(args_.k, head.batch, head.kv_head),
                    p_.head_dim, begin, rows, T(1),
                    keys_.data() + unit * keys_per_unit_ + begin * q_cols_, q_cols_);
      }
      if (!has_values) {
        load_packed(simd_, map, rows_of<const Storage>(args_.v, head.batch, head.kv_head),
                    p_.v_head_dim, begin, rows, T(1),
                    values_.data() + unit * values_per_unit_ + begin * out_cols_, out_cols_);
      }
    });
  }

  void follow_gather(const GatherView& view) {
    pack_gather();
    const int64_t items = ceil_div(p_.q_len, kGatherQueriesPerItem);
    parallel_for(heads_in_wave() * items, p_.threads, [&](int64_t item, int thread) {
      const int64_t head = item / items, begin = item % items * kGatherQueriesPerItem;
      const int32_t group = view.group_of[head_in_wave(head).index(p_)];
      const int64_t end = std::min(begin + kGatherQueriesPerItem, p_.q_len);
      for (int64_t query = begin; query < end; ++query) {
        follow_keys(keys_of(view, group, query), head, query, work_[size_t(thread)]);
      }
    });
  }

  void follow_keys(std::span<const int32_t> list, int64_t head, int64_t query, Work& work) const {
    if (keeps_state_ && list.empty()) return;
    const Head h = head_in_wave(head);
    const int64_t unit = head / p_.group;
    const GatherRows keys =
        gather_rows(args_.k, h, p_.head_dim, q_cols_, keys_.at(unit * keys_per_unit_));
    const GatherRows values =
        gather_rows(args_.v, h, p_.v_head_dim, out_cols_, values_.at(unit * values_per_unit_));
    simd_.load_rows(rows_of<const Storage>(args_.q, h.batch, h.head)[query], 0, 1, p_.head_dim,
                    q_cols_, T(p_.score_factor()), work.q.data(), q_cols_);
    begin_row(work, 0, head, query);
    T* scores = work.scores.data();
    while (!list.empty()) {
      const int64_t count = std::min(int64_t(list.size()), kStripKeys);
      const int64_t cols = round_up(count, simd_.lanes);
      simd_.gather_dots(work.q.data(), keys.data, keys.stride, list.data(), count, q_cols_, scores);
      std::fill(scores + count, scores + cols, T(0));
      if (p_.softcap > 0) simd_.softcap(scores, kStripStride, 1, cols, T(p_.cap_base_2()));
      std::fill(scores + count, scores + cols, kNever);
      absorb(cols, 1, work);
      simd_.gather_sum(scores, values.data, values.stride, list.data(), count, out_cols_,
                       work.out.data());
      list = list.subspan(size_t(count));
    }
    end_rows(work, 1, head, [query](int64_t) { return query; });
  }

  const ForwardArgs& args_;
  const Problem p_;
  const Primitives<Storage>& simd_;
  const int64_t q_cols_, out_cols_;  // head_dim and v_head_dim, in whole vectors
  const bool keeps_state_;
  KeyPanels<Storage> panels_;
  std::vector<Work> work_;  // [threads]

  // Of the wave at hand.
  int64_t first_unit_ = 0, num_units_ = 0;
  Scratch<T> keys_, values_;  // [num_units_] rows to gather from
  int64_t keys_per_unit_ = 0, values_per_unit_ = 0;
  Scratch<T> state_out_, state_max_, state_sum_;  // [heads in wave][q_len]
};

}  // namespace

template <class Storage>
void forward(const ForwardArgs& args) {
  ForwardPass<Storage>(args).run();
}

template void forward<float>(const ForwardArgs&);
template void forward<double>(const ForwardArgs&);
template void forward<Half>(const ForwardArgs&);
template void forward<BFloat16>(const ForwardArgs&);

}  // namespace keyhole::cpu
