// src/kernels/device/top_k_by_digits.cu
#include <algorithm>

#include "base/ordered_bits.h"
#include "kernels/device/launch.h"
#include "kernels/device/row_choice.cuh"
#include "kernels/device/top_k_by_digits.h"
#include "kernels/device/top_keys.cuh"

namespace keyhole::device {
namespace {

constexpr int32_t kDigitThreads = 256;

// The lowest `count` set bits of a word.
__device__ uint32_t lowest_bits(uint32_t word, int32_t count) {
  uint32_t rest = word;
  for (int32_t i = 0; i < count && rest != 0; ++i) rest &= rest - 1;
  return word & ~rest;
}

template <class Storage>
struct OpenScores {
  const Storage* scores;
  RowOfBits bits;

  // Calls visit(may be chosen, ordered bits) for this thread's entries.
  template <class Visit>
  __device__ void for_each(Visit visit) const {
    for (int64_t entry = threadIdx.x; entry < bits.entries; entry += kDigitThreads) {
      const float score = value_of(scores[entry]);
      visit(can_be_chosen(score) && bits.is_open(entry), ordered_bits(score));
    }
  }
};

// The best of a row and those of `always`. A warp reads 32 words of entries in turn, and lane i
// keeps the i-th of them, so that words are in the order of the threads.
template <class Storage>
__device__ void write_best(const TopKRows& rows, const TopKRows::Place& place,
                           const OpenScores<Storage>& open, const Ranked<uint32_t>& last,
                           CtaSum<kDigitThreads>& sums) {
  const int32_t lane = int32_t(threadIdx.x % 32), warp = int32_t(threadIdx.x / 32);
  const int64_t words = ceil_div(rows.entries, int64_t{32});
  ListWriter<kDigitThreads> list(rows, place, sums);
  int32_t ties = last.exists ? last.taken : 0;  // left to take, of those equal to the last
  for (int64_t first = 0; first < words; first += kDigitThreads) {
    uint32_t above = 0, equal = 0;
    for (int32_t i = 0; i < 32; ++i) {
      const int64_t entry = 32 * (first + 32 * warp + i) + lane;
      const bool is_there = entry < rows.entries && open.bits.is_open(entry);
      const float score = is_there ? value_of(open.scores[entry]) : -INFINITY;
      const bool counts = can_be_chosen(score);
      const uint32_t bits = ordered_bits(score);
      const uint32_t is_above = __ballot_sync(~0u, counts && bits > last.bits);
      const uint32_t is_equal = __ballot_sync(~0u, counts && bits == last.bits);
      if (lane == i) above = is_above, equal = is_equal;
    }
    const auto at = sums.scan(uint32_t(__popc(equal)));
    const int64_t word = first + threadIdx.x;
    const uint32_t taken = lowest_bits(equal, ties - int32_t(at.before));
    ties -= int32_t(at.all);
    const uint32_t always = word < words ? open.bits.always_word(word) : 0;
    list.write({above | taken | always}, 32 * word);
  }
  list.finish();
}

template <class Storage>
__global__ void __launch_bounds__(kDigitThreads)
    top_k(const __grid_constant__ TopKRows rows, const int32_t* only) {
  __shared__ int32_t histogram[kDigits];
  __shared__ CtaSum<kDigitThreads> sums;
  if (only != nullptr && only[blockIdx.x] == 0) return;
  const TopKRows::Place place = rows.place(blockIdx.x);
  const RowOfBits bits = {rows.visible_of(place), rows.always_of(place), rows.entries};
  const RowCounts counts = count_row(rows, bits, sums);
  if (counts.takes == Takes::visible) {
    return write_words(rows, place, sums, [&](int64_t word) { return bits.visible_word(word); });
  }
  if (counts.takes == Takes::always) {
    return write_words(rows, place, sums, [&](int64_t word) { return bits.always_word(word); });
  }
  const OpenScores<Storage> open = {rows.scores_of<Storage>(place), bits};
  const auto last = find_rank<uint32_t, CtaTeam>(rows.k - counts.always, 32, histogram,
                                                 [&](auto visit) { open.for_each(visit); });
  write_best(rows, place, open, last, sums);
}

}  // namespace

void launch_top_k_by_digits(DType dtype, const TopKRows& rows, const int32_t* only,
                            cudaStream_t stream) {
  if (rows.num_rows == 0) return;
  const Grid grid = {unsigned(rows.num_rows), kDigitThreads, 0};
  with_device_storage(dtype, [&](auto storage) {
    launch("top_k by digits", top_k<decltype(storage)>, grid, stream, rows, only);
  });
}

}  // namespace keyhole::device
