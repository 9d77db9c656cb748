// src/kernels/cpu/forward.cpp
// A work item is one query tile (or a few gathered queries) of one head. One thread processes it in
// the order of its list: the same bits for any number of threads. Keys and values are packed
// before, for as many heads as fit the memory set aside.
#include "kernels/cpu/forward.h"

#include <limits>
#include <type_traits>
#include <vector>

#include "base/bits.h"
#include "kernels/cpu/key_panels.h"
#include "kernels/cpu/output_rows.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/problem.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/tile_walk.h"

namespace keyhole::cpu {
namespace {

constexpr int64_t kGatherQueriesPerItem = 16;

template <class Storage>
class ForwardPass {
  using T = typename Traits<Storage>::Compute;

  // The state of a thread: some queries, their scores, and the softmax so far.
  struct Work {
    Scratch<T> q, scores;
    typename OutputRows<Storage>::Block rows;
    Prefetch soon;
  };

 public:
  explicit ForwardPass(const ForwardArgs& args)
      : args_(args),
        rows_(args),
        p_(rows_.p),
        simd_(rows_.simd),
        q_cols_(round_up(p_.head_dim, simd_.lanes)),
        panels_(args_, p_),
        work_(size_t(p_.threads)) {
    for (Work& work : work_) {
      work.q.reserve(rows_.kMost * q_cols_);
      work.scores.reserve(rows_.kMost * kStripStride);
      rows_.reserve(work.rows);
    }
  }

  void run() {
    if (p_.q_len == 0) return;
    for_each_wave(p_, bytes_per_unit(), [this](int64_t first, int64_t last) {
      rows_.begin_wave(first, last);
      for (size_t part = 0; part < p_.plan.tiles.size(); ++part) follow_tiles(int64_t(part));
      for (const GatherView& view : p_.plan.gathers) follow_gather(view);
      rows_.finish_wave();
    });
  }

 private:
  int64_t bytes_per_unit() const {
    int64_t most = panels_.bytes_per_unit();
    if (!p_.plan.gathers.empty()) {
      const int64_t key = is_gathered_in_place(p_.head_dim, q_cols_) ? 0 : q_cols_;
      const int64_t value = is_gathered_in_place(p_.v_head_dim, rows_.cols) ? 0 : rows_.cols;
      most = std::max(most, p_.k_len * (key + value) * int64_t(sizeof(T)));
    }
    return most + rows_.bytes_per_unit();
  }

  // --- tiles ---

  void follow_tiles(int64_t part) {
    const TileView& view = p_.plan.tiles[size_t(part)];
    panels_.begin_part(part, rows_.first_unit, rows_.num_units);
    const int64_t lists = int64_t{view.classes} * view.q_tiles;
    const int64_t at_once = lists_per_item(view);
    const int64_t items = ceil_div(lists, at_once);
    parallel_for(rows_.num_heads() * items, p_.threads, [&](int64_t item, int thread) {
      const int64_t head = item / items, begin = item % items * at_once;
      const int32_t group = view.group_of[rows_.head(head).index(p_)];
      for (int64_t place = begin; place < std::min(begin + at_once, lists); ++place) {
        const int64_t list = group < 0 ? place : view.order[group * lists + place];
        follow_list(view, group, head, int32_t(list / view.q_tiles), int32_t(list % view.q_tiles),
                    thread);
      }
    });
  }

  // Neighbouring lists use the same panels. A thread that caches them takes several lists at once,
  // if there are enough for all threads of a typical machine.
  int64_t lists_per_item(const TileView& view) const {
    constexpr int64_t kRows = 512, kItems = 64;
    if (!panels_.is_cached()) return 1;
    const int64_t lists = rows_.num_heads() * view.classes * view.q_tiles;
    return std::clamp<int64_t>(lists / kItems, 1, kRows / view.tile.q);
  }

  void follow_list(const TileView& view, int32_t group, int64_t head, int32_t c, int32_t q_tile,
                   int thread) {
    const ResidueClass& residue = view.residues[c];
    const int64_t first_row = int64_t{q_tile} * view.tile.q;
    const SpacedRows queries = {residue.first_q + view.stride * first_row, view.stride,
                                std::min<int64_t>(view.tile.q, residue.num_q - first_row)};
    const auto list = list_of(view, group, c, q_tile);
    if (queries.count <= 0 || (rows_.keeps_state && list.empty())) return;

    Work& work = work_[size_t(thread)];
    const Rows<const T> q = query_rows(rows_.head(head), queries, work);
    look_ahead(rows_.head(head), queries, residue.num_q - first_row - queries.count, work.soon);
    const int64_t unit = head / p_.group, rows = queries.count;
    rows_.begin(work.rows, head, queries);
    for_each_strip(list, view.tile.k, kStripKeys, [&](const Strip& strip) {
      score(strip, view, q, unit, c, rows, thread);    // s = q . k, masked
      absorb(strip.cols, rows, work);                  // p = exp(s - max)
      add_values(strip, view, unit, c, rows, thread);  // o += p . v
    });
    rows_.end(work.rows, head, queries);
  }

  // Rows of q in place, or copied if they cannot be read in place.
  Rows<const T> query_rows(const Head& head, const SpacedRows& queries, Work& work) const {
    const auto q = rows_of<const Storage>(args_.q, head.batch, head.head);
    const int64_t stride = q.stride * queries.stride;
    if constexpr (std::is_same_v<Storage, T>) {
      if (reads_in_place<Storage>(args_.q, queries.stride, simd_.lanes)) {
        return {q[queries.first], stride};
      }
    }
    simd_.load_rows(q[queries.first], stride, queries.count, p_.head_dim, q_cols_, T(1),
                    work.q.data(), q_cols_);
    return {work.q.data(), q_cols_};
  }

  // Prefetches what is likely to be needed after the keys and values of a list: its rows of out,
  // and the next queries. left: queries left in the class.
  void look_ahead(const Head& head, const SpacedRows& queries, int64_t left, Prefetch& soon) const {
    const auto q = rows_of<const Storage>(args_.q, head.batch, head.head);
    const auto out = rows_of<const Storage>(args_.out, head.batch, head.head);
    soon.add(q[queries[queries.count]], q.stride * queries.stride, std::min(queries.count, left),
             p_.head_dim);
    soon.add(out[queries.first], out.stride * queries.stride, queries.count, p_.v_head_dim);
  }

  void score(const Strip& strip, const TileView& view, const Rows<const T>& q, int64_t unit,
             int32_t c, int64_t rows, int thread) {
    Work& work = work_[size_t(thread)];
    const int64_t first_key = int64_t{c} * view.k_tiles * view.tile.k;
    for (const Strip::Piece& piece : strip.pieces()) {
      for (int64_t done = 0; done < piece.count;) {
        const int64_t key = first_key + piece.row + done, col = key % kPanel;
        const int64_t cols = std::min(piece.count - done, kPanel - col);
        simd_.gemm({.rows = rows,
                    .cols = cols,
                    .depth = p_.head_dim,
                    .a = q.data,
                    .a_stride = q.stride,
                    .b = panels_.keys(unit, key / kPanel, thread, work.soon) + col,
                    .b_stride = kPanel,
                    .c = work.scores.data() + piece.col + done,
                    .c_stride = kStripStride,
                    .meanwhile = &work.soon});
        done += cols;
      }
    }
    simd_.score(work.scores.data(), kStripStride, rows, strip.cols, p_.rule);
    const int64_t words = words_per_row(view.tile.k);
    for (const Strip::Partial& partial : strip.partials()) {
      simd_.mask(work.scores.data() + partial.col, kStripStride, rows, view.tile.k,
                 view.bitmaps + partial.bitmap * view.tile.q * words, words);
    }
  }

  void absorb(int64_t cols, int64_t rows, Work& work) const {
    simd_.softmax({.rule = p_.rule,
                   .rows = rows,
                   .cols = cols,
                   .scores = work.scores.data(),
                   .stride = kStripStride,
                   .max = work.rows.max.data(),
                   .sum = work.rows.sum.data(),
                   .out = work.rows.out.data(),
                   .out_stride = rows_.cols,
                   .out_cols = rows_.cols});
  }

  void add_values(const Strip& strip, const TileView& view, int64_t unit, int32_t c, int64_t rows,
                  int thread) {
    Work& work = work_[size_t(thread)];
    for (const Strip::Piece& piece : strip.pieces()) {
      const int64_t first_key = int64_t{c} * view.k_tiles * view.tile.k + piece.row;
      const int64_t real = std::min(piece.count, view.residues[c].num_k - piece.row);
      for (int64_t done = 0; done < real;) {
        const Values<T> values = panels_.values(unit, first_key + done, real - done, thread);
        for (int64_t col = 0; col < rows_.cols; col += kPanel) {
          simd_.gemm({.rows = rows,
                      .cols = std::min(kPanel, rows_.cols - col),
                      .depth = values.count,
                      .a = work.scores.data() + piece.col + done,
                      .a_stride = kStripStride,
                      .b = values.data + col / kPanel * values.column_step,
                      .b_stride = values.stride,
                      .b_panel = values.panel_step,
                      .c = work.rows.out.data() + col,
                      .c_stride = rows_.cols,
                      .accumulate = work.rows.has_out,
                      .meanwhile = &work.soon});
        }
        work.rows.has_out = true;
        done += values.count;
      }
    }
  }

  // --- gathered keys ---

  // The rows to gather from: those of the tensor if they can be used in place (whole vectors of the
  // compute type), else a packed copy.
  static bool is_gathered_in_place(int64_t head_dim, int64_t cols) {
    return std::is_same_v<Storage, T> && head_dim == cols;
  }
  Rows<const T> gather_rows(const TensorView& tensor, const Head& head, int64_t head_dim,
                            int64_t cols, const T* packed) const {
    if constexpr (std::is_same_v<Storage, T>) {
      if (is_gathered_in_place(head_dim, cols)) {
        return rows_of<const T>(tensor, head.batch, head.kv_head);
      }
    }
    return {packed, cols};
  }

  void pack_gather() {
    const bool has_keys = is_gathered_in_place(p_.head_dim, q_cols_);
    const bool has_values = is_gathered_in_place(p_.v_head_dim, rows_.cols);
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

  void follow_gather(const GatherView& view) {
    pack_gather();
    const int64_t items = ceil_div(p_.q_len, kGatherQueriesPerItem);
    parallel_for(rows_.num_heads() * items, p_.threads, [&](int64_t item, int thread) {
      const int64_t head = item / items, begin = item % items * kGatherQueriesPerItem;
      const int32_t group = view.group_of_head(rows_.head(head).index(p_));
      const int64_t end = std::min(begin + kGatherQueriesPerItem, p_.q_len);
      for (int64_t query = begin; query < end; ++query) {
        follow_keys(keys_of(view, group, query), head, query, work_[size_t(thread)]);
      }
    });
  }

  void follow_keys(std::span<const int32_t> list, int64_t head, int64_t query, Work& work) const {
    if (rows_.keeps_state && list.empty()) return;
    const Head h = rows_.head(head);
    const int64_t unit = head / p_.group;
    const Rows<const T> keys =
        gather_rows(args_.k, h, p_.head_dim, q_cols_, keys_.at(unit * keys_per_unit_));
    const Rows<const T> values =
        gather_rows(args_.v, h, p_.v_head_dim, rows_.cols, values_.at(unit * values_per_unit_));
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
      simd_.score(scores, kStripStride, 1, cols, p_.rule);
      std::fill(scores + count, scores + cols, -std::numeric_limits<T>::infinity());
      absorb(cols, 1, work);
      simd_.gather_sum(scores, values.data, values.stride, list.data(), count, rows_.cols,
                       work.rows.out.data());
      list = list.subspan(size_t(count));
    }
    rows_.end(work.rows, head, queries);
  }

  const ForwardArgs& args_;
  OutputRows<Storage> rows_;
  const Problem& p_;
  const Primitives<Storage>& simd_;
  const int64_t q_cols_;  // head_dim, rounded up to whole vectors
  KeyPanels<Storage> panels_;
  std::vector<Work> work_;  // [threads]

  Scratch<T> keys_, values_;  // [units in wave] rows to gather from
  int64_t keys_per_unit_ = 0, values_per_unit_ = 0;
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
