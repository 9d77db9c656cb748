// src/kernels/cpu/output_rows.h
// The destination of rows of out and lse, for the heads of one wave. With one part in the plan a
// row is finished as soon as its list is done; with several, its softmax state is kept here until
// all parts are done. Rows come in blocks, which amortises the cost of a call.
#pragma once

#include <limits>

#include "kernels/cpu/primitives.h"
#include "kernels/cpu/problem.h"
#include "kernels/cpu/scratch.h"

namespace keyhole::cpu {

template <class Storage>
class OutputRows {
 public:
  using T = typename Traits<Storage>::Compute;
  static constexpr int64_t kMost = 64;  // rows of a block: the height of the tallest tile

  // The softmax state of some rows.
  struct Block {
    Scratch<T> out;  // [kMost][cols]  not yet divided by the sum
    Scratch<T> max;  // [kMost]
    Scratch<T> sum;  // [kMost][kMaxLanes]  one sum per lane
    bool has_out;    // false: nothing was added to out yet, and its contents are undefined
  };

  explicit OutputRows(const ForwardArgs& arguments);

  const ForwardArgs& args;
  const Problem p;
  const Primitives<Storage>& simd;
  const int64_t cols;      // v_head_dim, rounded up to whole vectors
  const bool keeps_state;  // between parts

  // Heads and units (kv heads) are counted within the wave.
  int64_t first_unit = 0, num_units = 0;
  int64_t num_heads() const { return num_units * p.group; }
  Head head(int64_t i) const { return head_of(p, first_unit + i / p.group, i % p.group); }

  int64_t bytes_per_unit() const {
    return keeps_state ? p.group * p.q_len * (cols + 2) * int64_t(sizeof(T)) : 0;
  }

  void begin_wave(int64_t first, int64_t last);
  void finish_wave() const;

  void reserve(Block& block) const;
  // Some queries of head i, before and after the keys of one part.
  void begin(Block& block, int64_t i, const SpacedRows& queries) const;
  // Sets out to 0 if nothing was added to it.
  void define_out(Block& block, int64_t rows) const;
  void end(Block& block, int64_t i, const SpacedRows& queries) const;

  // How scores of the first `rows` queries of the block become weights.
  SoftmaxStrip<Storage> softmax_of(Block& block, T* scores, int64_t stride, int64_t rows,
                                   int64_t score_cols) const {
    return {.rule = p.rule,
            .rows = rows,
            .cols = score_cols,
            .scores = scores,
            .stride = stride,
            .max = block.max.data(),
            .sum = block.sum.data(),
            .out = block.out.data(),
            .out_stride = cols,
            .out_cols = cols};
  }

 private:
  static constexpr T kNever = -std::numeric_limits<T>::infinity();

  bool one_part_writes_all() const;
  // out / sum and lse.
  void finish(const Head& head, const SpacedRows& queries, const T* out, const T* max,
              const T* sum) const;

  Scratch<T> state_out_, state_max_, state_sum_;  // [heads in wave][q_len], if state is kept
};

}  // namespace keyhole::cpu
