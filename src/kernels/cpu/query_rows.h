// src/kernels/cpu/query_rows.h
// Rows of q and dout in the compute type, for a part of tiles and the heads of a wave, in the order
// of residue classes. Rows that are visited often are packed. If lists are short and the tensors
// have the compute type, rows are read in place.
#pragma once

#include <type_traits>

#include "kernels/cpu/gradient_rows.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/tile_walk.h"

namespace keyhole::cpu {

template <class Storage>
class QueryRows {
  using T = typename Traits<Storage>::Compute;

 public:
  explicit QueryRows(const GradientRows<Storage>& rows) : rows_(rows), p_(rows.p) {}

  int64_t bytes_per_unit(const TileView& view) const {
    const int64_t length = RowMap::of_queries(view).rows();
    const int64_t packed = are_read_in_place(view) ? 0
                                                   : RowPanels<T>::size(length, rows_.q_cols) +
                                                         RowPanels<T>::size(length, rows_.v_cols);
    return p_.group * packed * int64_t(sizeof(T));
  }

  void begin_part(const TileView& view) {
    map_ = RowMap::of_queries(view);
    is_in_place_ = are_read_in_place(view);
    if (is_in_place_) return;
    q_.reserve(rows_.num_heads() * RowPanels<T>::size(map_.rows(), rows_.q_cols));
    dout_.reserve(rows_.num_heads() * RowPanels<T>::size(map_.rows(), rows_.v_cols));
    rows_.for_each_block(
        rows_.num_heads(), map_.rows(),
        [&](int64_t i, int64_t begin, int64_t length, int) { pack(i, begin, length); });
  }

  // Rows of class c from row `row` on; head i of the wave.
  MatrixRows<T> q(int64_t i, int32_t c, int64_t row) const {
    return matrix(rows_.args.q, i, c, row, packed_q(i));
  }
  MatrixRows<T> dout(int64_t i, int32_t c, int64_t row) const {
    return matrix(rows_.args.dout, i, c, row, packed_dout(i));
  }

 private:
  // Packing writes and reads every row once more. It pays from some hundred keys per query on.
  bool are_read_in_place(const TileView& view) const {
    constexpr int64_t kFewKeys = 512;
    if (!reads_in_place<Storage>(rows_.args.q, view.stride, rows_.simd.lanes) ||
        !reads_in_place<Storage>(rows_.args.dout, view.stride, rows_.simd.lanes)) {
      return false;
    }
    const int64_t lists = int64_t{view.groups} * view.classes * view.q_tiles;
    int64_t tiles = 0;
    for (int64_t list = 0; list < lists; ++list) {
      for (int32_t r = 0; r < view.list_count[list]; ++r) {
        tiles += view.runs[view.list_begin[list] + r].count;
      }
    }
    return tiles * view.tile.k <= kFewKeys * lists;
  }

  RowPanels<T> packed_q(int64_t i) const {
    return {q_.at(i * RowPanels<T>::size(map_.rows(), rows_.q_cols)), map_.rows(), rows_.q_cols};
  }
  RowPanels<T> packed_dout(int64_t i) const {
    return {dout_.at(i * RowPanels<T>::size(map_.rows(), rows_.v_cols)), map_.rows(), rows_.v_cols};
  }

  MatrixRows<T> matrix(const TensorView& tensor, int64_t i, int32_t c, int64_t row,
                       const RowPanels<T>& packed) const {
    if constexpr (std::is_same_v<Storage, T>) {
      if (is_in_place_) {
        const Head head = rows_.head(i);
        const auto rows = rows_of<const T>(tensor, head.batch, head.head);
        return {rows[map_.source(c, row)], rows.stride * map_.stride, kPanel, packed.cols};
      }
    }
    return {packed.row(c * map_.per_class + row), packed.stride(), packed.panel_size(),
            packed.cols};
  }

  void pack(int64_t i, int64_t begin, int64_t length) {
    const Head head = rows_.head(i);
    pack_rows(rows_.simd, map_, rows_of<const Storage>(rows_.args.q, head.batch, head.head),
              p_.head_dim, begin, length, packed_q(i), begin);
    pack_rows(rows_.simd, map_, rows_of<const Storage>(rows_.args.dout, head.batch, head.head),
              p_.v_head_dim, begin, length, packed_dout(i), begin);
  }

  const GradientRows<Storage>& rows_;
  const Problem& p_;
  RowMap map_ = RowMap::plain(0);
  bool is_in_place_ = false;
  Scratch<T> q_, dout_;  // [heads in wave]
};

}  // namespace keyhole::cpu
