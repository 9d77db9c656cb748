// src/kernels/cpu/amx_gradients.h
// The matrix products of the backward pass in the 16-bit dtype of the tensors, on AMX tiles. p and
// ds are rounded to that dtype before they are multiplied. dk and dv are summed transposed:
//   dv' += dout' p    dk' += q' ds
// so that p and ds are on the right of both, as words of two queries; and ds, as it is, on the left
// of dq += ds k.
#pragma once

#include <algorithm>
#include <utility>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/gradient_pieces.h"
#include "kernels/cpu/gradient_rows.h"
#include "kernels/cpu/pack_words.h"
#include "kernels/cpu/scratch.h"

namespace keyhole::cpu {

// Rows of a tensor of queries in panels of kPanel rows, for a part of tiles and the heads of a
// wave: as they are, [kPanel][depth], and transposed, [cols][kPanel].
template <class Storage>
class QueryPanels {
 public:
  QueryPanels(int64_t head_dim, int64_t cols)
      : head_dim_(head_dim), depth_(amx::padded_depth(head_dim)), cols_(cols) {}

  int64_t depth() const { return depth_; }
  int64_t cols() const { return cols_; }
  int64_t panel_size() const { return kPanel * (depth_ + cols_); }
  int64_t bytes_per_head(const RowMap& map) const {
    return num_panels(map) * panel_size() * int64_t(sizeof(Storage));
  }

  void begin_part(const RowMap& map, int64_t num_heads) {
    map_ = map;
    panels_.reserve(num_heads * num_panels(map) * panel_size());
  }
  void pack(const Primitives<Storage>& simd, Rows<const Storage> from, int64_t head,
            int64_t panel) {
    Storage* to = panels_.data() + (head * num_panels(map_) + panel) * panel_size();
    copy_panel(map_, from, head_dim_, panel * kPanel, to, depth_);
    transpose_panel(simd, to, depth_, cols_, to + kPanel * depth_);
  }
  int64_t num_panels() const { return num_panels(map_); }

  // Where a piece begins.
  int64_t first(const QueryPiece& piece) const { return piece.c * map_.per_class + piece.row; }
  const uint16_t* panel_of(const QueryPiece& piece, int64_t row) const {
    const int64_t panel = piece.head * num_panels(map_) + row / kPanel;
    return bits_of(panels_.data()) + panel * panel_size();
  }

 private:
  static int64_t num_panels(const RowMap& map) { return ceil_div(map.rows(), kPanel); }

  int64_t head_dim_, depth_, cols_;
  RowMap map_ = RowMap::plain(0);
  Scratch<Storage> panels_;
};

template <class Storage>
class AmxGradients {
  static constexpr DType kType = Traits<Storage>::dtype;

 public:
  using Element = Storage;
  using Session = amx::Tiles;
  struct Operands {                       // of a thread
    Scratch<uint32_t> keys, values;       // [depth / 2][kPanel]
    Scratch<uint32_t> key_rows;           // [kPanel / 2][q_cols]
    Scratch<Storage> ds;                  // [kStripQueries][kScoreStride]
    Scratch<uint32_t> p_words, ds_words;  // [kStripQueries / 2][kScoreStride]
    Scratch<float> dk_t, dv_t;            // [cols][kScoreStride]
    Scratch<float> dk, dv;                // [kMostTileKeys][cols]
  };

  explicit AmxGradients(const GradientRows<Storage>& rows)
      : rows_(rows),
        p_(rows.p),
        simd_(rows.simd),
        q_(p_.head_dim, rows.q_cols),
        dout_(p_.v_head_dim, rows.v_cols) {}

  int64_t bytes_per_unit(const TileView& view) const {
    const RowMap map = RowMap::of_queries(view);
    return p_.group * (q_.bytes_per_head(map) + dout_.bytes_per_head(map));
  }
  void begin_part(const TileView& view) {
    const RowMap map = RowMap::of_queries(view);
    q_.begin_part(map, rows_.num_heads());
    dout_.begin_part(map, rows_.num_heads());
    const int64_t panels = q_.num_panels();
    parallel_for(rows_.num_heads() * panels, p_.threads, [&](int64_t item, int) {
      const int64_t i = item / panels, panel = item % panels;
      const Head head = rows_.head(i);
      q_.pack(simd_, rows_of<const Storage>(rows_.args.q, head.batch, head.head), i, panel);
      dout_.pack(simd_, rows_of<const Storage>(rows_.args.dout, head.batch, head.head), i, panel);
    });
  }

  void reserve(Operands& to) const {
    to.keys.reserve(q_.depth() / 2 * kPanel);
    to.values.reserve(dout_.depth() / 2 * kPanel);
    to.key_rows.reserve(kPanel / 2 * rows_.q_cols);
    to.ds.reserve(kStripQueries * kScoreStride);
    to.p_words.reserve(kStripQueries / 2 * kScoreStride);
    to.ds_words.reserve(kStripQueries / 2 * kScoreStride);
    to.dk_t.reserve(rows_.q_cols * kScoreStride);
    to.dv_t.reserve(rows_.v_cols * kScoreStride);
    to.dk.reserve(kMostTileKeys * rows_.q_cols);
    to.dv.reserve(kMostTileKeys * rows_.v_cols);
  }

  void pack_keys(const RowMap& map, Rows<const Storage> k, Rows<const Storage> v, int64_t begin,
                 Operands& to) const {
    pack_word_columns(simd_, map, k, p_.head_dim, begin, to.keys.data());
    pack_word_columns(simd_, map, v, p_.v_head_dim, begin, to.values.data());
    pack_word_rows(simd_, map, k, p_.head_dim, begin, to.key_rows.data(), rows_.q_cols);
  }

  void look_ahead(const QueryPiece&, int64_t, Prefetch&) const {}

  void multiply_keys(const QueryPiece& piece, const KeyTile& tile, const Operands& operands,
                     float* s, Prefetch&) const {
    multiply(q_, piece, tile, operands.keys.data(), s);
  }
  void multiply_values(const QueryPiece& piece, const KeyTile& tile, const Operands& operands,
                       float* dp, Prefetch&) const {
    multiply(dout_, piece, tile, operands.values.data(), dp);
  }

  void prepare(ScoreGradient<Storage>& gradient, int64_t first_row, Operands& operands) const {
    const int64_t words = first_row / 2 * kScoreStride;
    gradient.rounded = {operands.ds.data() + first_row * kScoreStride,
                        operands.p_words.data() + words, operands.ds_words.data() + words};
  }

  void add_to_keys(const QueryPiece& piece, const KeyTile& tile, Operands& operands, const float*,
                   const float*, bool has_sums, Prefetch&) const {
    // Queries that are multiplied but do not exist.
    const int64_t end = round_up(piece.rows, int64_t{2}) / 2 * kScoreStride;
    const int64_t padded_end = amx::padded_depth(piece.rows) / 2 * kScoreStride;
    for (Scratch<uint32_t>* words : {&operands.p_words, &operands.ds_words}) {
      std::fill(words->data() + end, words->data() + padded_end, 0);
    }
    add_transposed(dout_, piece, tile, operands.p_words.data(), operands.dv_t.data(), has_sums);
    add_transposed(q_, piece, tile, operands.ds_words.data(), operands.dk_t.data(), has_sums);
  }

  void add_to_queries(const QueryPiece& piece, const KeyTile& tile, const Operands& operands,
                      const float*, float* dq, Prefetch&) const {
    amx::multiply(kType, {.rows = amx::padded_rows(piece.rows),
                          .cols = rows_.q_cols,
                          .depth = tile.cols,
                          .a = bits_of(operands.ds.data()),
                          .a_stride = kScoreStride,
                          .b = operands.key_rows.data() + tile.col() / 2 * rows_.q_cols,
                          .b_stride = rows_.q_cols,
                          .c = dq,
                          .c_stride = rows_.q_cols,
                          .accumulate = true});
  }

  std::pair<const float*, const float*> key_sums(int64_t keys, bool has_sums,
                                                 Operands& operands) const {
    const auto as_rows = [&](Scratch<float>& from, int64_t cols, Scratch<float>& to) {
      if (!has_sums) std::fill_n(from.data(), cols * kScoreStride, 0.0f);
      primitives<float>().load_columns(from.data(), kScoreStride, cols, amx::padded_rows(keys),
                                       1.0f, to.data(), cols);
      return to.data();
    };
    return {as_rows(operands.dk_t, rows_.q_cols, operands.dk),
            as_rows(operands.dv_t, rows_.v_cols, operands.dv)};
  }

 private:
  // c = rows of queries . b, where b is [depth / 2][kPanel] words. Panel by panel.
  void multiply(const QueryPanels<Storage>& queries, const QueryPiece& piece, const KeyTile& tile,
                const uint32_t* b, float* c) const {
    for_each_panel(queries, piece,
                   [&](const uint16_t* panel, int64_t in_panel, int64_t done, int64_t count) {
                     amx::multiply(kType, {.rows = amx::padded_rows(count),
                                           .cols = tile.cols,
                                           .depth = queries.depth(),
                                           .a = panel + in_panel * queries.depth(),
                                           .a_stride = queries.depth(),
                                           .b = b + tile.col(),
                                           .b_stride = kPanel,
                                           .c = c + done * kScoreStride,
                                           .c_stride = kScoreStride});
                   });
  }
  // c += queries, transposed . b, where b is [rows / 2][kScoreStride] words.
  void add_transposed(const QueryPanels<Storage>& queries, const QueryPiece& piece,
                      const KeyTile& tile, const uint32_t* b, float* c, bool has_sums) const {
    for_each_panel(queries, piece,
                   [&](const uint16_t* panel, int64_t in_panel, int64_t done, int64_t count) {
                     amx::multiply(kType, {.rows = queries.cols(),
                                           .cols = tile.cols,
                                           .depth = amx::padded_depth(count),
                                           .a = panel + kPanel * queries.depth() + in_panel,
                                           .a_stride = kPanel,
                                           .b = b + done / 2 * kScoreStride,
                                           .b_stride = kScoreStride,
                                           .c = c,
                                           .c_stride = kScoreStride,
                                           .accumulate = has_sums || done > 0});
                   });
  }

  template <class Visit>
  static void for_each_panel(const QueryPanels<Storage>& queries, const QueryPiece& piece,
                             Visit visit) {
    const int64_t first = queries.first(piece);
    for (int64_t done = 0; done < piece.rows;) {
      const int64_t in_panel = (first + done) % kPanel;
      const int64_t count = std::min(piece.rows - done, kPanel - in_panel);
      visit(queries.panel_of(piece, first + done), in_panel, done, count);
      done += count;
    }
  }

  const GradientRows<Storage>& rows_;
  const Problem& p_;
  const Primitives<Storage>& simd_;
  QueryPanels<Storage> q_, dout_;
};

}  // namespace keyhole::cpu
