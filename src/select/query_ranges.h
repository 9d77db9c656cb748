// src/select/query_ranges.h
// Long calls are divided: so many queries at a time that their scratch memory stays below a bound.
#pragma once

#include <algorithm>

#include "kernels/select_contract.h"

namespace keyhole {

// How many of `queries` go at a time: as many as bytes_of(count) allows, at least 1. More than 64
// are a multiple of 64, so that no kernel's tile is cut.
template <class Bytes>
int64_t queries_at_a_time(int64_t queries, int64_t most_bytes, Bytes bytes_of) {
  int64_t count = std::max<int64_t>(1, queries);
  for (int64_t bytes = bytes_of(count); bytes > most_bytes && count > 1; bytes = bytes_of(count)) {
    const auto share = int64_t(double(count) * (double(most_bytes) / double(bytes)));
    count = std::clamp<int64_t>(share, 1, count - 1);
    if (count > 64) count -= count % 64;
  }
  return count;
}

template <class Visit>
void for_each_range(int64_t queries, int64_t at_a_time, Visit visit) {
  for (int64_t first = 0; first < queries; first += at_a_time) {
    visit(QueryRange{first, std::min(at_a_time, queries - first)});
  }
}

}  // namespace keyhole
