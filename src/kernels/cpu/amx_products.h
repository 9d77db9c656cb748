// src/kernels/cpu/amx_products.h
// The matrix products of the forward pass in the 16-bit dtype of the tensors, on AMX tiles. Weights
// are rounded to that dtype before they meet the values. The scale is applied to the scores: 16
// bits have no room for it. A panel holds keys, [head_dim / 2][kPanel] words, then values, [kPanel
// / 2][v_head_dim] words (amx.h).
#pragma once

#include <cmath>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/key_panels.h"
#include "kernels/cpu/output_rows.h"
#include "kernels/cpu/pack_words.h"
#include "kernels/cpu/scratch.h"

namespace keyhole::cpu {

template <class Storage>
class AmxProducts {
  static constexpr DType kType = Traits<Storage>::dtype;
  static constexpr int64_t kWeightStride = kStripKeys + amx::kDepth;

 public:
  using Element = Storage;
  using Packed = uint32_t;
  using Session = amx::Tiles;
  struct Operands {            // of a thread
    Scratch<Storage> q;        // [kMost][depth_]
    Scratch<Storage> weights;  // [kMost][kWeightStride]
  };

  AmxProducts(const ForwardArgs& args, const OutputRows<Storage>& rows)
      : args_(args),
        p_(rows.p),
        simd_(rows.simd),
        depth_(amx::padded_depth(p_.head_dim)),
        v_cols_(rows.cols),
        rule_(SoftmaxRule<Base2Math<float>>::of(p_.rule)) {}

  // --- panels ---

  int64_t keys_size() const { return depth_ / 2 * kPanel; }
  int64_t values_size() const { return kPanel / 2 * v_cols_; }
  void pack_keys(const RowMap& map, Rows<const Storage> k, int64_t begin, uint32_t* to) const {
    pack_word_columns(simd_, map, k, p_.head_dim, begin, to);
  }
  void pack_values(const RowMap& map, Rows<const Storage> v, int64_t begin, uint32_t* to) const {
    pack_word_rows(simd_, map, v, p_.v_head_dim, begin, to, v_cols_);
  }
  // As many rows as whole instructions multiply; what is added to `count` is 0.
  Values<uint32_t> values_from(const uint32_t* panel, int64_t row, int64_t count,
                               int64_t panel_step) const {
    return {panel + row / 2 * v_cols_, amx::padded_depth(count), v_cols_, panel_step, 0};
  }

  // --- products ---

  void reserve(Operands& operands) const {
    operands.q.reserve(OutputRows<Storage>::kMost * depth_);
    operands.weights.reserve(OutputRows<Storage>::kMost * kWeightStride);
  }

  void load_queries(const Head& head, const SpacedRows& queries, Operands& operands) const {
    const auto q = rows_of<const Storage>(args_.q, head.batch, head.head);
    copy_rows(q[queries.first], q.stride * queries.stride, queries.count, p_.head_dim,
              operands.q.data(), depth_);
  }

  void multiply_keys(const Operands& operands, int64_t rows, const uint32_t* keys, int64_t cols,
                     float* scores, Prefetch&) const {
    amx::multiply(kType, {.rows = amx::padded_rows(rows),
                          .cols = cols,
                          .depth = depth_,
                          .a = bits_of(operands.q.data()),
                          .a_stride = depth_,
                          .b = keys,
                          .b_stride = kPanel,
                          .c = scores,
                          .c_stride = kStripStride});
  }
  void finish_scores(float* scores, int64_t rows, int64_t cols) const {
    if (softmax_scales()) return;
    simd_.score(scores, kStripStride, rows, cols, p_.rule, /*is_folded=*/false);
  }

  void prepare(SoftmaxStrip<Storage>& strip, Operands& operands) const {
    if (softmax_scales()) strip.factor = rule_.factor;
    strip.weights = operands.weights.data();
    strip.weights_stride = kWeightStride;
  }

  void add_values(const Operands& operands, const float*, int64_t first, int64_t rows,
                  const Values<uint32_t>& values, typename OutputRows<Storage>::Block& to,
                  Prefetch&) const {
    amx::multiply(kType, {.rows = amx::padded_rows(rows),
                          .cols = v_cols_,
                          .depth = values.count,
                          .a = bits_of(operands.weights.data()) + first,
                          .a_stride = kWeightStride,
                          .b = values.data,
                          .b_stride = values.stride,
                          .b_panel = values.panel_step,
                          .c = to.out.data(),
                          .c_stride = v_cols_,
                          .accumulate = to.has_out});
  }

 private:
  // A positive factor keeps the order of products, and -inf as it is.
  bool softmax_scales() const {
    return !rule_.is_bent() && rule_.factor > 0 && std::isfinite(rule_.factor);
  }

  const ForwardArgs& args_;
  const Problem& p_;
  const Primitives<Storage>& simd_;
  const int64_t depth_, v_cols_;
  const SoftmaxRule<Base2Math<float>> rule_;
};

}  // namespace keyhole::cpu
