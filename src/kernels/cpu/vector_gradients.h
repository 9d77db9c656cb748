// src/kernels/cpu/vector_gradients.h
// The matrix products of the backward pass in the compute type, on vectors: any dtype, any machine.
#pragma once

#include <utility>

#include "kernels/cpu/gradient_pieces.h"
#include "kernels/cpu/gradient_rows.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/query_rows.h"

namespace keyhole::cpu {

template <class Storage>
class VectorGradients {
  using T = typename Traits<Storage>::Compute;

 public:
  using Element = Storage;
  struct Session {};          // what a thread needs to multiply: nothing
  struct Operands {           // of a thread
    Scratch<T> keys, values;  // [cols][kPanel]  transposed, the panel that holds the key tile
    Scratch<T> key_rows;      // [kPanel][q_cols]  in row panels, unless read in place
    Scratch<T> dk, dv;        // [kMostTileKeys][cols]
  };

  explicit VectorGradients(const GradientRows<Storage>& rows)
      : rows_(rows), p_(rows.p), simd_(rows.simd), queries_(rows) {}

  int64_t bytes_per_unit(const TileView& view) const { return queries_.bytes_per_unit(view); }
  void begin_part(const TileView& view) {
    map_ = RowMap::of_keys(view);
    queries_.begin_part(view);
  }

  void reserve(Operands& to) const {
    to.keys.reserve(p_.head_dim * kPanel);
    to.values.reserve(p_.v_head_dim * kPanel);
    to.key_rows.reserve(RowPanels<T>::size(kPanel, rows_.q_cols));
    to.dk.reserve(kMostTileKeys * rows_.q_cols);
    to.dv.reserve(kMostTileKeys * rows_.v_cols);
  }

  // The kPanel packed keys from `begin` on.
  void pack_keys(const RowMap& map, Rows<const Storage> k, Rows<const Storage> v, int64_t begin,
                 Operands& to) const {
    pack_columns(simd_, map, k, p_.head_dim, begin, T(1), to.keys.data());
    pack_columns(simd_, map, v, p_.v_head_dim, begin, T(1), to.values.data());
    if (reads_keys_in_place()) return;
    pack_rows(simd_, map, k, p_.head_dim, begin, kPanel,
              RowPanels<T>{to.key_rows.data(), kPanel, rows_.q_cols}, 0);
  }

  // Prefetches `count` queries after the piece.
  void look_ahead(const QueryPiece& piece, int64_t count, Prefetch& soon) const {
    for (const MatrixRows<T>& m : {q(piece), dout(piece)}) {
      soon.add(m.data + piece.rows * m.stride, m.stride, count, std::min(m.cols, kPanel));
    }
  }

  // s = q . k and dp = dout . v
  void multiply_keys(const QueryPiece& piece, const KeyTile& tile, const Operands& operands, T* s,
                     Prefetch& soon) const {
    multiply(q(piece), piece, tile, operands.keys.data(), p_.head_dim, s, soon);
  }
  void multiply_values(const QueryPiece& piece, const KeyTile& tile, const Operands& operands,
                       T* dp, Prefetch& soon) const {
    multiply(dout(piece), piece, tile, operands.values.data(), p_.v_head_dim, dp, soon);
  }

  // p and ds take the place of the products.
  void prepare(ScoreGradient<Storage>&, int64_t, Operands&) const {}

  // dv += p' dout and dk += ds' q
  void add_to_keys(const QueryPiece& piece, const KeyTile& tile, Operands& operands, const T* p,
                   const T* ds, bool has_sums, Prefetch& soon) const {
    add_transposed(p, piece, tile, dout(piece), operands.dv.data(), has_sums, soon);
    add_transposed(ds, piece, tile, q(piece), operands.dk.data(), has_sums, soon);
  }

  // dq += ds k
  void add_to_queries(const QueryPiece& piece, const KeyTile& tile, const Operands& operands,
                      const T* ds, T* dq, Prefetch& soon) const {
    const MatrixRows<T> keys = key_rows(tile, operands);
    for (int64_t col = 0; col < keys.cols; col += kPanel) {
      simd_.gemm({.rows = piece.rows,
                  .cols = std::min(keys.cols - col, kPanel),
                  .depth = tile.keys.count,
                  .a = ds,
                  .a_stride = kScoreStride,
                  .b = keys.data + col / kPanel * keys.panel,
                  .b_stride = keys.stride,
                  .c = dq + col,
                  .c_stride = keys.cols,
                  .accumulate = true,
                  .meanwhile = &soon});
    }
  }

  // dk and dv of the first keys of the tile, as rows.
  std::pair<const T*, const T*> key_sums(int64_t keys, bool has_sums, Operands& operands) const {
    T *dk = operands.dk.data(), *dv = operands.dv.data();
    if (!has_sums) {
      std::fill_n(dk, keys * rows_.q_cols, T(0));
      std::fill_n(dv, keys * rows_.v_cols, T(0));
    }
    return {dk, dv};
  }

 private:
  MatrixRows<T> q(const QueryPiece& piece) const {
    return queries_.q(piece.head, piece.c, piece.row);
  }
  MatrixRows<T> dout(const QueryPiece& piece) const {
    return queries_.dout(piece.head, piece.c, piece.row);
  }
  bool reads_keys_in_place() const {
    return reads_in_place<Storage>(rows_.args.k, map_.stride, simd_.lanes);
  }
  MatrixRows<T> key_rows(const KeyTile& tile, const Operands& operands) const {
    if constexpr (std::is_same_v<Storage, T>) {
      if (reads_keys_in_place()) {
        const Head head = rows_.kv_head(tile.unit);
        const auto k = rows_of<const T>(rows_.args.k, head.batch, head.kv_head);
        return {k[tile.keys.first], k.stride * tile.keys.stride, kPanel, rows_.q_cols};
      }
    }
    const RowPanels<T> packed = {operands.key_rows.data(), kPanel, rows_.q_cols};
    return {packed.row(tile.col()), packed.stride(), packed.panel_size(), packed.cols};
  }

  // c = a . b, where b is [depth][kPanel]
  void multiply(const MatrixRows<T>& a, const QueryPiece& piece, const KeyTile& tile, const T* b,
                int64_t depth, T* c, Prefetch& soon) const {
    simd_.gemm({.rows = piece.rows,
                .cols = tile.cols,
                .depth = depth,
                .a = a.data,
                .a_stride = a.stride,
                .a_panel = a.panel,
                .b = b + tile.col(),
                .b_stride = kPanel,
                .c = c,
                .c_stride = kScoreStride,
                .meanwhile = &soon});
  }
  // c += a' . b, where a is [rows][kScoreStride] and c one of the sums
  void add_transposed(const T* a, const QueryPiece& piece, const KeyTile& tile,
                      const MatrixRows<T>& b, T* c, bool has_sums, Prefetch& soon) const {
    for (int64_t col = 0; col < b.cols; col += kPanel) {
      simd_.gemm({.rows = tile.keys.count,
                  .cols = std::min(b.cols - col, kPanel),
                  .depth = piece.rows,
                  .a = a,
                  .a_stride = kScoreStride,
                  .b = b.data + col / kPanel * b.panel,
                  .b_stride = b.stride,
                  .c = c + col,
                  .c_stride = b.cols,
                  .accumulate = has_sums,
                  .a_transposed = true,
                  .meanwhile = &soon});
    }
  }

  const GradientRows<Storage>& rows_;
  const Problem& p_;
  const Primitives<Storage>& simd_;
  RowMap map_ = RowMap::plain(0);  // of keys
  QueryRows<Storage> queries_;
};

}  // namespace keyhole::cpu
