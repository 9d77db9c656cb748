// src/kernels/cpu/choose_row.h
// The choice of one row: `always` first, then the best scores, of equal ones the lowest entry.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/bits.h"
#include "base/int_math.h"
#include "kernels/cpu/problem.h"
#include "kernels/cpu/row_bits.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/select_primitives.h"
#include "kernels/select_contract.h"

namespace keyhole::cpu {

template <class T>
class RowChooser {
 public:
  RowChooser(const TopKArgs& args, int64_t entries)
      : args_(args), entries_(entries), simd_(select_primitives<T>()) {}

  // What one row may choose. Drawn before its scores are known.
  struct Row {
    int64_t batch = 0, group = 0, query = 0;
    std::vector<uint64_t> visible, always;  // always: only visible ones
    int64_t num_visible = 0, num_always = 0;
    int64_t first_visible = 0, last_visible = 0;  // roughly: whole words
    // What it takes: the best by score, or all that is visible or the first of `always`, whatever
    // the scores are.
    enum class Takes : uint8_t { best, visible, always } takes = Takes::best;

    bool needs_scores() const { return takes == Takes::best; }
  };
  void draw(int64_t batch, int64_t group, int64_t query, Row& row) const {
    const int64_t head_index = batch * args_.scores.shape[1] + group;
    const size_t words = size_t(ceil_div(entries_, 64));
    row.batch = batch, row.group = group, row.query = query;
    row.visible.resize(words);
    if (args_.visible != nullptr) {
      draw_row(*args_.visible, head_index, query, entries_, row.visible.data());
    } else {
      draw_all(entries_, row.visible.data());
    }
    row.num_visible = count_bits(row.visible.data(), entries_);
    const auto is_set = [](uint64_t word) { return word != 0; };
    row.first_visible = 64 * (std::ranges::find_if(row.visible, is_set) - row.visible.begin());
    const auto last = std::find_if(row.visible.rbegin(), row.visible.rend(), is_set);
    row.last_visible = std::min(entries_, 64 * (row.visible.rend() - last));
    row.num_always = 0;
    if (args_.always != nullptr) {
      row.always.resize(words);
      draw_row(*args_.always, head_index, query, entries_, row.always.data());
      for (size_t i = 0; i < words; ++i) row.always[i] &= row.visible[i];
      row.num_always = count_bits(row.always.data(), entries_);
    }
    const bool is_short = args_.takes_short_rows && row.num_visible <= args_.k;
    row.takes = is_short                    ? Row::Takes::visible
                : row.num_always >= args_.k ? Row::Takes::always
                                            : Row::Takes::best;
  }

  // scores: of all entries, if the row needs them; only visible ones decide.
  void choose(const Row& row, const T* scores) {
    chosen_.clear();
    if (row.takes == Row::Takes::visible) {
      take(row.visible);
    } else if (row.num_always > 0) {
      take(row.always);
    }
    if (row.needs_scores()) take_best(row, scores);
    write(row);
  }

 private:
  void take(const std::vector<uint64_t>& bits) {
    for_each_bit(bits.data(), entries_, [&](int64_t entry) {
      if (int64_t(chosen_.size()) < args_.k) chosen_.push_back(int32_t(entry));
    });
  }

  // A bound that a few times k entries are above, from a sample. -infinity: none. It may be too
  // high, or equal to many entries; then fewer than k are above it.
  T guess_bound(const Row& row, const T* scores, int64_t num_open, int64_t k) {
    constexpr int64_t kSample = 1024;
    constexpr T kNone = -std::numeric_limits<T>::infinity();
    if (num_open < 4 * kSample || num_open < 4 * k) return kNone;
    T* const sample = sample_.reserve(kSample + kMaxLanes<T>);
    int64_t num_seen = 0, count = 0;
    const int64_t step = (row.last_visible - row.first_visible) / kSample;
    for (int64_t i = 0; i < kSample; ++i) {
      // Not at equal distances: scores may have a period.
      const int64_t entry = row.first_visible + i * step + (i * 40503 >> 4) % step;
      if (!get_bit(open_.data(), entry)) continue;
      ++num_seen;
      if (scores[entry] > kNone) sample[count++] = scores[entry];
    }
    const double expected = double(num_seen) * double(k) / double(num_open);
    const int64_t rank = int64_t(expected + 5 * std::sqrt(expected) + 4);
    if (rank > count) return kNone;
    return simd_.kth_largest(sample, count, rank).value;
  }

  void take_best(const Row& row, const T* scores) {
    const int64_t k = args_.k - row.num_always, num_open = row.num_visible - row.num_always;
    open_ = row.visible;
    for (size_t i = 0; i < open_.size() && row.num_always > 0; ++i) open_[i] &= ~row.always[i];
    const int64_t room = entries_ + kMaxLanes<T>;
    T* const kept = kept_.reserve(room);
    int32_t* const entries = kept_entries_.reserve(room);
    const T bound = guess_bound(row, scores, num_open, k);
    int64_t count = simd_.collect_above(scores, entries_, open_.data(), bound, kept, entries);
    constexpr T kNone = -std::numeric_limits<T>::infinity();
    if (count < k && bound != kNone) {
      count = simd_.collect_above(scores, entries_, open_.data(), kNone, kept, entries);
    }
    const size_t before = chosen_.size();
    if (count <= k) {
      chosen_.insert(chosen_.end(), entries, entries + count);
    } else {
      T* const copy = sorted_.reserve(room);
      std::copy_n(kept, count, copy);
      const Threshold<T> threshold = simd_.kth_largest(copy, count, k);
      chosen_.resize(before + size_t(k + kMaxLanes<T>));
      simd_.take_best(kept, entries, count, k, threshold, chosen_.data() + before);
      chosen_.resize(before + size_t(k));
    }
    if (before == 0) return;
    merged_.resize(chosen_.size());
    const auto middle = chosen_.begin() + int64_t(before);
    std::merge(chosen_.begin(), middle, middle, chosen_.end(), merged_.begin());
    chosen_.swap(merged_);
  }

  void write(const Row& row) const {
    int32_t* const to = args_.indices + row.batch * args_.batch_stride +
                        row.group * args_.group_stride + row.query * args_.row_stride;
    std::copy(chosen_.begin(), chosen_.end(), to);
    std::fill(to + chosen_.size(), to + args_.columns, -1);
    if (args_.counts != nullptr) {
      args_.counts[row.batch * args_.counts_batch_stride + row.group * args_.counts_group_stride +
                   row.query * args_.counts_row_stride] = int32_t(chosen_.size());
    }
  }

  const TopKArgs& args_;
  const int64_t entries_;
  const SelectPrimitives<T>& simd_;
  std::vector<int32_t> chosen_, merged_;
  std::vector<uint64_t> open_;  // visible and not of `always`
  Scratch<T> kept_, sorted_, sample_;
  Scratch<int32_t> kept_entries_;
};

}  // namespace keyhole::cpu
