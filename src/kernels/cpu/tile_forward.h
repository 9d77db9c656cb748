// src/kernels/cpu/tile_forward.h
// The forward pass over a part of tiles. A work item is one query tile of one head, or a few. Its
// keys are taken in strips:
//   s = q . k    p = exp(s - max)    out += p . v
// `Products` computes the two matrix products and packs keys and values for them
// (vector_products.h, amx_products.h).
#pragma once

#include <vector>

#include "base/bits.h"
#include "kernels/cpu/key_panels.h"
#include "kernels/cpu/output_rows.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/problem.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/tile_walk.h"

namespace keyhole::cpu {

template <class Products>
class TileForward {
  using Storage = typename Products::Element;
  using T = typename Traits<Storage>::Compute;

 public:
  TileForward(const ForwardArgs& args, const OutputRows<Storage>& rows)
      : args_(args),
        rows_(rows),
        p_(rows.p),
        simd_(rows.simd),
        products_(args, rows),
        panels_(args, p_, products_),
        work_(size_t(p_.threads)) {
    if (p_.plan.tiles.empty()) return;
    for (Work& work : work_) {
      products_.reserve(work.operands);
      work.scores.reserve(rows_.kMost * kStripStride);
      rows_.reserve(work.rows);
    }
  }

  int64_t bytes_per_unit() const { return panels_.bytes_per_unit(); }

  // Part number `part` of the plan.
  void follow(int64_t part) {
    const TileView& view = p_.plan.tiles[size_t(part)];
    panels_.begin_part(part, rows_.first_unit, rows_.num_units);
    const int64_t lists = int64_t{view.classes} * view.q_tiles;
    const int64_t at_once = lists_per_item(view);
    const int64_t items = ceil_div(lists, at_once);
    parallel_for(rows_.num_heads() * items, p_.threads, [&](int64_t item, int thread) {
      const int64_t head = item / items, begin = item % items * at_once;
      const int32_t group = view.group_of[rows_.head(head).index(p_)];
      [[maybe_unused]] const typename Products::Session session;
      for (int64_t place = begin; place < std::min(begin + at_once, lists); ++place) {
        const int64_t list = group < 0 ? place : view.order[group * lists + place];
        follow_list(view, group, head, int32_t(list / view.q_tiles), int32_t(list % view.q_tiles),
                    thread);
      }
    });
  }

 private:
  // The state of a thread: some queries, their scores, and the softmax so far.
  struct Work {
    typename Products::Operands operands;
    Scratch<T> scores;
    typename OutputRows<Storage>::Block rows;
    Prefetch soon;
  };

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
    products_.load_queries(rows_.head(head), queries, work.operands);
    look_ahead(rows_.head(head), queries, residue.num_q - first_row - queries.count, work.soon);
    const int64_t unit = head / p_.group, rows = queries.count;
    rows_.begin(work.rows, head, queries);
    for_each_strip(list, view.tile.k, kStripKeys, [&](const Strip& strip) {
      score(strip, view, unit, c, rows, thread);       // s = q . k, masked
      absorb(strip.cols, rows, work);                  // p = exp(s - max)
      add_values(strip, view, unit, c, rows, thread);  // o += p . v
    });
    rows_.end(work.rows, head, queries);
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

  void score(const Strip& strip, const TileView& view, int64_t unit, int32_t c, int64_t rows,
             int thread) {
    Work& work = work_[size_t(thread)];
    const int64_t first_key = int64_t{c} * view.k_tiles * view.tile.k;
    for (const Strip::Piece& piece : strip.pieces()) {
      for (int64_t done = 0; done < piece.count;) {
        const int64_t key = first_key + piece.row + done, col = key % kPanel;
        const int64_t cols = std::min(piece.count - done, kPanel - col);
        products_.multiply_keys(work.operands, rows,
                                panels_.keys(unit, key / kPanel, thread, work.soon) + col, cols,
                                work.scores.data() + piece.col + done, work.soon);
        done += cols;
      }
    }
    products_.finish_scores(work.scores.data(), rows, strip.cols);
    const int64_t words = words_per_row(view.tile.k);
    for (const Strip::Partial& partial : strip.partials()) {
      simd_.mask(work.scores.data() + partial.col, kStripStride, rows, view.tile.k,
                 view.bitmaps + partial.bitmap * view.tile.q * words, words);
    }
  }

  void absorb(int64_t cols, int64_t rows, Work& work) const {
    auto strip = rows_.softmax_of(work.rows, work.scores.data(), kStripStride, rows, cols);
    products_.prepare(strip, work.operands);
    simd_.softmax(strip);
  }

  void add_values(const Strip& strip, const TileView& view, int64_t unit, int32_t c, int64_t rows,
                  int thread) {
    Work& work = work_[size_t(thread)];
    for (const Strip::Piece& piece : strip.pieces()) {
      const int64_t first_key = int64_t{c} * view.k_tiles * view.tile.k + piece.row;
      const int64_t real = std::min(piece.count, view.residues[c].num_k - piece.row);
      for (int64_t done = 0; done < real;) {
        const auto values = panels_.values(unit, first_key + done, real - done, thread);
        products_.add_values(work.operands, work.scores.data(), piece.col + done, rows, values,
                             work.rows, work.soon);
        work.rows.has_out = true;
        done += values.count;
      }
    }
  }

  const ForwardArgs& args_;
  const OutputRows<Storage>& rows_;
  const Problem& p_;
  const Primitives<Storage>& simd_;
  const Products products_;
  KeyPanels<Products> panels_;
  std::vector<Work> work_;  // [threads]
};

}  // namespace keyhole::cpu
