// src/pattern/leaves/bit_runs.h
// Rows of bits as leaves read them: 64 pairs at a time from any column on, and as runs of a strip.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/bits.h"
#include "base/int_math.h"
#include "pattern/strip.h"

namespace keyhole {

// The 64 bits of a row of `words` words from column `begin` on, which may lie anywhere; zeros
// outside the row.
inline uint64_t bits_from(const uint64_t* row, int64_t words, int64_t begin) {
  const int64_t word = floor_div(begin, 64), shift = floor_mod(begin, 64);
  const uint64_t low = 0 <= word && word < words ? row[word] : 0;
  if (shift == 0) return low;
  const uint64_t high = 0 <= word + 1 && word + 1 < words ? row[word + 1] : 0;
  return low >> shift | high << (64 - shift);
}

// Ones in the bits of word `word` that stand for columns inside `columns`.
inline uint64_t ones_inside(Span columns, int64_t word) {
  uint64_t ones = 0;
  set_bits(&ones, std::max<int64_t>(0, columns.begin - word * 64),
           std::min<int64_t>(64, columns.end - word * 64));
  return ones;
}

// Appends the runs of one word whose bit 0 is key `begin`: `all` where every row has the bit,
// `some` where any has.
inline void append_runs(uint64_t any, uint64_t every, Position begin, Strip& out) {
  if (any == ~uint64_t{0} && every == 0) return out.append(begin, begin + 64, Cover::some);
  while (any != 0) {
    const int first = std::countr_zero(any);
    const bool is_all = every >> first & 1;
    const int count = std::countr_one((is_all ? every : any & ~every) >> first);
    out.append(begin + first, begin + first + count, is_all ? Cover::all : Cover::some);
    const int next = first + count;
    any = next == 64 ? 0 : any >> next << next;
  }
}

}  // namespace keyhole
