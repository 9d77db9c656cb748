// src/kernels/cpu/output_rows.cpp
#include "kernels/cpu/output_rows.h"

#include <array>
#include <cmath>

#include "kernels/cpu/exact.h"

namespace keyhole::cpu {

template <class Storage>
OutputRows<Storage>::OutputRows(const ForwardArgs& arguments)
    : args(arguments),
      p(problem_of(arguments)),
      simd(primitives<Storage>()),
      cols(round_up(p.v_head_dim, simd.lanes)),
      keeps_state(!one_part_writes_all()) {}

// A single part may write results directly, if it contains every query.
template <class Storage>
bool OutputRows<Storage>::one_part_writes_all() const {
  if (p.num_parts() != 1) return false;
  if (!p.plan.gathers.empty()) return true;
  const TileView& view = p.plan.tiles[0];
  int64_t rows = 0;
  for (int32_t c = 0; c < view.classes; ++c) rows += view.residues[c].num_q;
  return rows == p.q_len;
}

template <class Storage>
void OutputRows<Storage>::begin_wave(int64_t first, int64_t last) {
  first_unit = first;
  num_units = last - first;
  if (!keeps_state) return;
  const int64_t rows = num_heads() * p.q_len;
  std::fill_n(state_out_.reserve(rows * cols), rows * cols, T(0));
  std::fill_n(state_max_.reserve(rows), rows, kNever);
  std::fill_n(state_sum_.reserve(rows), rows, T(0));
}

template <class Storage>
void OutputRows<Storage>::finish_wave() const {
  if (!keeps_state) return;
  const int64_t blocks = ceil_div(p.q_len, kMost);
  parallel_for(num_heads() * blocks, p.threads, [&](int64_t item, int) {
    const int64_t i = item / blocks, query = item % blocks * kMost, row = i * p.q_len + query;
    finish(head(i), {query, 1, std::min(kMost, p.q_len - query)}, state_out_.data() + row * cols,
           state_max_.data() + row, state_sum_.data() + row);
  });
}

template <class Storage>
void OutputRows<Storage>::reserve(Block& block) const {
  block.out.reserve(kMost * cols);
  block.max.reserve(kMost);
  block.sum.reserve(kMost * kMaxLanes<T>);
}

template <class Storage>
void OutputRows<Storage>::begin(Block& block, int64_t i, const SpacedRows& queries) const {
  std::fill_n(block.sum.data(), queries.count * kMaxLanes<T>, T(0));
  block.has_out = keeps_state;
  if (!keeps_state) {
    std::fill_n(block.max.data(), queries.count, kNever);
    return;
  }
  for (int64_t r = 0; r < queries.count; ++r) {
    const int64_t row = i * p.q_len + queries[r];
    std::copy_n(state_out_.data() + row * cols, cols, block.out.data() + r * cols);
    block.max[r] = state_max_[row];
    block.sum[r * kMaxLanes<T>] = state_sum_[row];
  }
}

template <class Storage>
void OutputRows<Storage>::define_out(Block& block, int64_t rows) const {
  if (!block.has_out) std::fill_n(block.out.data(), rows * cols, T(0));
  block.has_out = true;
}

template <class Storage>
void OutputRows<Storage>::end(Block& block, int64_t i, const SpacedRows& queries) const {
  define_out(block, queries.count);
  std::array<T, kMost> sum;
  simd.sum_lanes(block.sum.data(), queries.count, sum.data());
  if (!keeps_state) {
    return finish(head(i), queries, block.out.data(), block.max.data(), sum.data());
  }
  for (int64_t r = 0; r < queries.count; ++r) {
    const int64_t row = i * p.q_len + queries[r];
    std::copy_n(block.out.data() + r * cols, cols, state_out_.data() + row * cols);
    state_max_[row] = block.max[r];
    state_sum_[row] = sum[size_t(r)];
  }
}

template <class Storage>
void OutputRows<Storage>::finish(const Head& h, const SpacedRows& queries, const T* out,
                                 const T* max, const T* sum) const {
  const auto rule = SoftmaxRule<Base2Math<T>>::of(p.rule);
  const bool has_sink = p.sink != nullptr;  // one more key, without a value
  const T sink = has_sink ? T(p.sink_of(h.head) * kLog2E) : kNever;
  std::array<T, kMost> factor, lse;
  std::array<bool, kMost> is_sound;  // empty, or with a finite lse
  bool all_sound = true;
  for (int64_t r = 0; r < queries.count; ++r) {
    T top = max[r], share = 1, total = sum[r];  // exp(max - top); the sum against top
    if (has_sink) {
      top = std::max(max[r], sink);
      share = max[r] == kNever ? T(0) : rule.weight(max[r], top);
      total = share * sum[r] + (sink == kNever ? T(0) : rule.weight(sink, top));
    }
    const bool is_empty = total == 0;
    const size_t at = size_t(r);
    factor[at] = is_empty ? T(0) : share / total;
    lse[at] = is_empty ? kNever : (top + std::log2(total)) * T(1 / kLog2E);
    is_sound[at] = is_empty || std::isfinite(lse[at]);
    all_sound = all_sound && is_sound[at];
  }
  if (args.lse.is_given()) {
    const auto to = rows_of<T>(args.lse, h.batch, h.head);
    for (int64_t r = 0; r < queries.count; ++r) *to[queries[r]] = lse[size_t(r)];
  }
  const auto to = rows_of<Storage>(args.out, h.batch, h.head);
  const auto store = [&](int64_t r, int64_t count) {
    return simd.store_rows(out + r * cols, cols, count, p.v_head_dim, factor.data() + r,
                           to[queries[r]], to.stride * queries.stride);
  };
  if (store(0, queries.count) && all_sound) [[likely]]
    return;
  for (int64_t r = 0; r < queries.count; ++r) {
    if (store(r, 1) && is_sound[size_t(r)]) continue;
    exact_forward_row<Storage>(args, h.batch, h.head, queries[r]);
  }
}

template class OutputRows<float>;
template class OutputRows<double>;
template class OutputRows<Half>;
template class OutputRows<BFloat16>;

}  // namespace keyhole::cpu
