// src/kernels/device/row_choice.cuh
// The choice of one row by a CTA: what it may choose, and writing what it has chosen in order.
#pragma once

#include <cstdint>

#include "base/int_math.h"
#include "kernels/device/cta_sum.cuh"
#include "kernels/device/top_k_rows.h"

namespace keyhole::device {

// A score that NaN or -infinity is never chosen, unless by `always`.
__device__ inline bool can_be_chosen(float score) { return score > -INFINITY; }

// The bits of one row; null: every entry is visible, none is always taken.
struct RowOfBits {
  const uint32_t *visible, *always;
  int64_t entries;

  // 32 entries, from entry 32 * word on.
  __device__ uint32_t visible_word(int64_t word) const {
    if (visible != nullptr) return visible[word];
    const int64_t left = entries - 32 * word;
    return left >= 32 ? ~0u : left <= 0 ? 0u : ~0u >> (32 - left);
  }
  __device__ uint32_t always_word(int64_t word) const {
    return always != nullptr ? always[word] & visible_word(word) : 0;
  }
  __device__ uint32_t open_word(int64_t word) const {
    return visible_word(word) & ~(always != nullptr ? always[word] : 0);
  }
  __device__ bool is_open(int64_t entry) const {
    if (visible == nullptr && always == nullptr) return true;
    return (open_word(entry / 32) >> (entry % 32) & 1) != 0;
  }
};

// What a row takes: the best by score beside `always`, or all that is visible or the first of
// `always`, whatever the scores are.
enum class Takes : int32_t { best, visible, always };
struct RowCounts {
  Takes takes;
  int32_t visible, always;
  __device__ int32_t open() const { return visible - always; }
};

template <int32_t kThreads>
__device__ RowCounts count_row(const TopKRows& rows, const RowOfBits& bits,
                               CtaSum<kThreads>& sums) {
  RowCounts counts = {Takes::best, int32_t(rows.entries), 0};
  if (bits.visible != nullptr || bits.always != nullptr) {
    uint32_t visible = 0, always = 0;
    for (int64_t word = threadIdx.x; word < ceil_div(rows.entries, int64_t{32}); word += kThreads) {
      visible += uint32_t(__popc(bits.visible_word(word)));
      always += uint32_t(__popc(bits.always_word(word)));
    }
    counts.visible = int32_t(sums.all(visible));
    counts.always = int32_t(sums.all(always));
  }
  if (rows.takes_short_rows && counts.visible <= rows.k) {
    counts.takes = Takes::visible;
  } else if (counts.always >= rows.k) {
    counts.takes = Takes::always;
  }
  return counts;
}

// Writes a list in order, from words of bits: those that come before have been written.
template <int32_t kThreads>
class ListWriter {
 public:
  __device__ ListWriter(const TopKRows& rows, const TopKRows::Place& place, CtaSum<kThreads>& sums)
      : rows_(rows), place_(place), to_(rows.indices_of(place)), sums_(sums) {}

  // The words of every thread, neighbouring ones, in the order of the threads. At most k entries
  // are written in all.
  template <int32_t kWords>
  __device__ void write(const uint32_t (&words)[kWords], int64_t first_entry) {
    uint32_t own = 0;
#pragma unroll
    for (const uint32_t word : words) own += uint32_t(__popc(word));
    const auto at = sums_.scan(own);
    int32_t place = written_ + int32_t(at.before);
#pragma unroll
    for (int32_t i = 0; i < kWords; ++i) {
      for (uint32_t word = words[i]; word != 0 && place < rows_.k; word &= word - 1, ++place) {
        to_[place] = int32_t(first_entry) + 32 * i + __ffs(int(word)) - 1;
      }
    }
    written_ = min(written_ + int32_t(at.all), rows_.k);
  }
  // Padding, and the count.
  __device__ void finish() {
    for (int64_t i = written_ + int64_t{threadIdx.x}; i < rows_.columns; i += kThreads) to_[i] = -1;
    if (threadIdx.x == 0 && rows_.counts != nullptr) *rows_.count_of(place_) = written_;
  }

 private:
  const TopKRows& rows_;
  const TopKRows::Place& place_;
  int32_t* const to_;
  CtaSum<kThreads>& sums_;
  int32_t written_ = 0;
};

// A list whose words do not depend on scores.
template <int32_t kThreads, class WordOf>
__device__ void write_words(const TopKRows& rows, const TopKRows::Place& place,
                            CtaSum<kThreads>& sums, WordOf word_of) {
  ListWriter<kThreads> list(rows, place, sums);
  const int64_t words = ceil_div(rows.entries, int64_t{32});
  for (int64_t first = 0; first < words; first += kThreads) {
    const int64_t word = first + threadIdx.x;
    list.write({word < words ? word_of(word) : 0}, 32 * word);
  }
  list.finish();
}

}  // namespace keyhole::device
