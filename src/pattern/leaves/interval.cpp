// src/pattern/leaves/interval.cpp
// Bands and rectangles of interval leaves. Intervals only move forward, so the first and the last
// query of a band decide: all of the band see what both see, and none sees a key outside both.
#include "pattern/leaves/interval.h"

#include <algorithm>

namespace keyhole {

void IntervalLeaf::strip(Span q, Span k, Position grain, Strip& out) const {
  (void)grain;
  if (q.is_empty()) return;
  const Span first = keys_of(q.begin), last = keys_of(q.end - 1);
  const Span by_any = intersect({first.begin, last.end}, k);
  const Span by_all = intersect({last.begin, first.end}, by_any);
  if (by_all.is_empty()) {
    out.append(by_any.begin, by_any.end, Cover::some);
    return;
  }
  out.append(by_any.begin, by_all.begin, Cover::some);
  out.append(by_all.begin, by_all.end, Cover::all);
  out.append(by_all.end, by_any.end, Cover::some);
}

Cover IntervalLeaf::cover(const Rect& rect) const {
  if (rect.q.is_empty() || rect.k.is_empty()) return Cover::none;
  const Span first = keys_of(rect.q.begin), last = keys_of(rect.q.end - 1);
  if (rect.k.begin >= last.begin && rect.k.end <= first.end) return Cover::all;
  if (rect.k.begin >= last.end || rect.k.end <= first.begin) return Cover::none;
  return Cover::some;
}

void IntervalLeaf::draw(const Rect& rect, BitRows& bits) const {
  for (Position q = rect.q.begin; q < rect.q.end; ++q) {
    const Span keys = intersect(keys_of(q), rect.k);
    set_bits(bits.row(int32_t(q - rect.q.begin)), keys.begin - rect.k.begin,
             keys.end - rect.k.begin);
  }
}

}  // namespace keyhole
