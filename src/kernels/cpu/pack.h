// src/kernels/cpu/pack.h
// Packs tensor rows into the layouts the matrix product reads: the rows of residue classes one
// after another, each class padded with zeros to whole tiles, in panels of kPanel columns (or,
// transposed, of kPanel rows).
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cpu/primitives.h"
#include "kernels/cpu/problem.h"

namespace keyhole::cpu {

// Maps packed rows to tensor rows: row i of class c is packed as row c * per_class + i.
struct RowMap {
  int64_t classes, per_class;  // per_class: whole tiles
  int64_t stride;
  const ResidueClass* residues;  // null: one class, all rows of the tensor
  bool keys;
  int64_t num_rows;  // of the tensor, when residues is null

  static RowMap of_keys(const TileView& view) {
    return {view.classes, int64_t{view.k_tiles} * view.tile.k, view.stride, view.residues, true, 0};
  }
  static RowMap of_queries(const TileView& view) {
    return {
        view.classes, int64_t{view.q_tiles} * view.tile.q, view.stride, view.residues, false, 0};
  }
  static RowMap plain(int64_t num_rows) { return {1, num_rows, 1, nullptr, false, num_rows}; }

  int64_t rows() const { return classes * per_class; }
  int64_t first(int64_t c) const {
    return residues == nullptr ? 0 : keys ? residues[c].first_k : residues[c].first_q;
  }
  int64_t count(int64_t c) const {
    return residues == nullptr ? num_rows : keys ? residues[c].num_k : residues[c].num_q;
  }
  int64_t source(int64_t c, int64_t i) const { return first(c) + stride * i; }

  // Calls visit(offset, source, count) for the stretches of packed rows [begin, begin + length)
  // that exist in the tensor: `count` rows from `source` on, `stride` apart, go to begin + offset.
  template <class Visit>
  void for_each_stretch(int64_t begin, int64_t length, Visit visit) const {
    int64_t offset = 0;
    while (offset < length && begin + offset < rows()) {
      const int64_t c = (begin + offset) / per_class, i = (begin + offset) % per_class;
      const int64_t here = std::min(length - offset, per_class - i);
      const int64_t real = std::clamp<int64_t>(count(c) - i, 0, here);
      if (real > 0) visit(offset, source(c, i), real);
      offset += here;
    }
  }
};

// Whether the matrix product can read rows of a tensor, `step` apart, in place: they have the
// compute type and whole vectors, and are not so far apart that they evict each other from the
// cache.
template <class Storage>
bool reads_in_place(const TensorView& tensor, int64_t step, int64_t lanes) {
  const int64_t cols = tensor.shape[3];
  return std::is_same_v<Storage, typename Traits<Storage>::Compute> && cols % lanes == 0 &&
         tensor.strides[2] * step <= 2 * cols;
}

// [rows][cols] in panels: column x of row r is panel(x / kPanel)[r * stride + x % kPanel].
template <class T>
struct RowPanels {
  T* data = nullptr;
  int64_t rows = 0, cols = 0;  // cols: whole vectors

  int64_t stride() const { return std::min(cols, kPanel); }
  int64_t num_panels() const { return ceil_div(cols, kPanel); }
  int64_t width(int64_t p) const { return std::min(cols - p * kPanel, kPanel); }
  int64_t panel_size() const { return rows * stride(); }
  T* panel(int64_t p) const { return data + p * panel_size(); }
  T* row(int64_t r) const { return data + r * stride(); }  // of panel 0
  static int64_t size(int64_t rows, int64_t cols) {
    return rows * std::min(cols, kPanel) * ceil_div(cols, kPanel);
  }
};

// A view of some rows of a matrix, in panels of kPanel columns: column x of row r is data[r *
// stride + x / kPanel * panel + x % kPanel].
template <class T>
struct MatrixRows {
  const T* data;
  int64_t stride, panel;
  int64_t cols;  // whole vectors
};

// Converts packed rows [begin, begin + length) to plain row-major `dst`; rows that do not exist are
// 0.
template <class Storage, class T = typename Traits<Storage>::Compute>
void load_packed(const Primitives<Storage>& simd, const RowMap& map, Rows<const Storage> from,
                 int64_t cols, int64_t begin, int64_t length, T* dst, int64_t dst_stride) {
  int64_t done = 0;
  const auto zero_until = [&](int64_t end) {
    for (; done < end; ++done) std::fill_n(dst + done * dst_stride, dst_stride, T(0));
  };
  map.for_each_stretch(begin, length, [&](int64_t offset, int64_t source, int64_t count) {
    zero_until(offset);
    simd.load_rows(from[source], from.stride * map.stride, count, cols, dst_stride, T(1),
                   dst + offset * dst_stride, dst_stride);
    done = offset + count;
  });
  zero_until(length);
}

// Prefetches the tensor rows of packed rows [begin, begin + length).
template <class Storage>
void prefetch_packed(const RowMap& map, Rows<const Storage> from, int64_t cols, int64_t begin,
                     int64_t length, Prefetch& soon) {
  map.for_each_stretch(begin, length, [&](int64_t, int64_t source, int64_t count) {
    soon.add(from[source], from.stride * map.stride, count, cols);
  });
}

// The kPanel packed rows from `begin` on as columns, times a factor: to[cols][kPanel]. Rows that do
// not exist are 0.
template <class Storage, class T = typename Traits<Storage>::Compute>
void pack_columns(const Primitives<Storage>& simd, const RowMap& map, Rows<const Storage> from,
                  int64_t cols, int64_t begin, T factor, T* to) {
  int64_t real = 0;
  map.for_each_stretch(begin, kPanel, [&](int64_t, int64_t, int64_t count) { real += count; });
  if (real < kPanel) std::fill_n(to, cols * kPanel, T(0));
  map.for_each_stretch(begin, kPanel, [&](int64_t offset, int64_t source, int64_t count) {
    simd.load_columns(from[source], from.stride * map.stride, count, cols, factor, to + offset,
                      kPanel);
  });
}

// Packed rows [begin, begin + length) into row panels, from row `to_row` on.
template <class Storage, class T = typename Traits<Storage>::Compute>
void pack_rows(const Primitives<Storage>& simd, const RowMap& map, Rows<const Storage> from,
               int64_t cols, int64_t begin, int64_t length, RowPanels<T> to, int64_t to_row) {
  for (int64_t p = 0; p < to.num_panels(); ++p) {
    const Rows<const Storage> columns = {from.data + p * kPanel, from.stride};
    load_packed(simd, map, columns, std::min(cols - p * kPanel, kPanel), begin, length,
                to.panel(p) + to_row * to.stride(), to.stride());
  }
}

}  // namespace keyhole::cpu
