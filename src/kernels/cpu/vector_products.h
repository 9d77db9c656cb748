// src/kernels/cpu/vector_products.h
// The matrix products of the forward pass in the compute type, on vectors: any dtype, any machine.
// A panel holds keys, transposed and scaled, [head_dim][kPanel], then values, [kPanel][v_head_dim]
// in row panels.
#pragma once

#include <type_traits>

#include "kernels/cpu/key_panels.h"
#include "kernels/cpu/output_rows.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/scratch.h"

namespace keyhole::cpu {

template <class Storage>
class VectorProducts {
  using T = typename Traits<Storage>::Compute;

 public:
  using Element = Storage;
  using Packed = T;     // what panels are made of
  struct Session {};    // what a thread needs to multiply: nothing
  struct Operands {     // of a thread
    Scratch<T> packed;  // [kMost][q_cols_]
    Rows<const T> q;
  };

  VectorProducts(const ForwardArgs& args, const OutputRows<Storage>& rows)
      : args_(args),
        p_(rows.p),
        simd_(rows.simd),
        q_cols_(round_up(p_.head_dim, simd_.lanes)),
        v_cols_(rows.cols) {}

  // --- panels ---

  int64_t keys_size() const { return p_.head_dim * kPanel; }
  int64_t values_size() const { return RowPanels<T>::size(kPanel, v_cols_); }
  void pack_keys(const RowMap& map, Rows<const Storage> k, int64_t begin, T* to) const {
    pack_columns(simd_, map, k, p_.head_dim, begin, p_.fold_factor<T>(), to);
  }
  void pack_values(const RowMap& map, Rows<const Storage> v, int64_t begin, T* to) const {
    pack_rows(simd_, map, v, p_.v_head_dim, begin, kPanel, RowPanels<T>{to, kPanel, v_cols_}, 0);
  }
  // Values of packed rows, from row number `row` of a panel on.
  Values<T> values_from(const T* panel, int64_t row, int64_t count, int64_t panel_step) const {
    const int64_t stride = std::min(v_cols_, kPanel);
    return {panel + row * stride, count, stride, panel_step, kPanel * stride};
  }

  // --- products ---

  void reserve(Operands& operands) const {
    operands.packed.reserve(OutputRows<Storage>::kMost * q_cols_);
  }

  // Rows of q in place, or copied if they cannot be read in place.
  void load_queries(const Head& head, const SpacedRows& queries, Operands& operands) const {
    const auto q = rows_of<const Storage>(args_.q, head.batch, head.head);
    const int64_t stride = q.stride * queries.stride;
    if constexpr (std::is_same_v<Storage, T>) {
      if (reads_in_place<Storage>(args_.q, queries.stride, simd_.lanes)) {
        operands.q = {q[queries.first], stride};
        return;
      }
    }
    T* packed = operands.packed.data();
    simd_.load_rows(q[queries.first], stride, queries.count, p_.head_dim, q_cols_, T(1), packed,
                    q_cols_);
    operands.q = {packed, q_cols_};
  }

  void multiply_keys(const Operands& operands, int64_t rows, const T* keys, int64_t cols, T* scores,
                     Prefetch& soon) const {
    simd_.gemm({.rows = rows,
                .cols = cols,
                .depth = p_.head_dim,
                .a = operands.q.data,
                .a_stride = operands.q.stride,
                .b = keys,
                .b_stride = kPanel,
                .c = scores,
                .c_stride = kStripStride,
                .meanwhile = &soon});
  }
  void finish_scores(T* scores, int64_t rows, int64_t cols) const {
    simd_.score(scores, kStripStride, rows, cols, p_.rule, /*is_folded=*/true);
  }

  // Weights take the place of the scores.
  void prepare(SoftmaxStrip<Storage>&, Operands&) const {}

  void add_values(const Operands&, const T* weights, int64_t first, int64_t rows,
                  const Values<T>& values, typename OutputRows<Storage>::Block& to,
                  Prefetch& soon) const {
    for (int64_t col = 0; col < v_cols_; col += kPanel) {
      simd_.gemm({.rows = rows,
                  .cols = std::min(kPanel, v_cols_ - col),
                  .depth = values.count,
                  .a = weights + first,
                  .a_stride = kStripStride,
                  .b = values.data + col / kPanel * values.column_step,
                  .b_stride = values.stride,
                  .b_panel = values.panel_step,
                  .c = to.out.data() + col,
                  .c_stride = v_cols_,
                  .accumulate = to.has_out,
                  .meanwhile = &soon});
    }
  }

 private:
  const ForwardArgs& args_;
  const Problem& p_;
  const Primitives<Storage>& simd_;
  const int64_t q_cols_, v_cols_;  // head_dim and v_head_dim, rounded up to whole vectors
};

}  // namespace keyhole::cpu
