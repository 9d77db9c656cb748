// src/pattern/strip.cpp
// Set operators on strips: each walks the segments of its arguments once, from left to right.
#include "pattern/strip.h"

#include <algorithm>
#include <limits>

namespace keyhole {
namespace {

// What holds from `at` on, and up to where. `i` is the first segment that ends behind `at`.
struct Stretch {
  Cover cover;
  Position end;
};
Stretch stretch_at(const Strip& strip, size_t i, Position at) {
  if (i == strip.size()) return {Cover::none, std::numeric_limits<Position>::max()};
  const Segment& segment = strip[i];
  if (at < segment.begin) return {Cover::none, segment.begin};
  return {segment.cover, segment.end};
}

// combine(none, none) must be none: the keys before, between and behind the segments are skipped.
template <class Combine>
Strip sweep(const Strip& a, const Strip& b, Combine combine) {
  Strip out;
  Position at = std::numeric_limits<Position>::max();
  if (!a.empty()) at = std::min(at, a[0].begin);
  if (!b.empty()) at = std::min(at, b[0].begin);
  for (size_t i = 0, j = 0; i < a.size() || j < b.size();) {
    const Stretch left = stretch_at(a, i, at), right = stretch_at(b, j, at);
    const Position end = std::min(left.end, right.end);
    out.append(at, end, combine(left.cover, right.cover));
    at = end;
    if (i < a.size() && a[i].end == at) ++i;
    if (j < b.size() && b[j].end == at) ++j;
  }
  return out;
}

}  // namespace

Strip both(const Strip& a, const Strip& b) {
  return sweep(a, b, [](Cover x, Cover y) { return x & y; });
}

Strip either(const Strip& a, const Strip& b) {
  return sweep(a, b, [](Cover x, Cover y) { return x | y; });
}

Strip joined(const Strip& a, const Strip& b) {
  return sweep(a, b, [](Cover x, Cover y) { return x == y ? x : Cover::some; });
}

Strip complement(const Strip& a, Span keys) {
  Strip out;
  Position at = keys.begin;
  for (const Segment& segment : a) {
    const Span inside = intersect({segment.begin, segment.end}, keys);
    if (inside.is_empty()) continue;
    out.append(at, inside.begin, Cover::all);
    out.append(inside.begin, inside.end, ~segment.cover);
    at = inside.end;
  }
  out.append(at, keys.end, Cover::all);
  return out;
}

Cover cover_of(const Strip& strip, Span within) {
  if (within.is_empty()) return Cover::none;
  const auto ends_before = [&](const Segment& segment) { return segment.end <= within.begin; };
  Position in_all = 0;
  for (auto it = std::partition_point(strip.begin(), strip.end(), ends_before);
       it != strip.end() && it->begin < within.end; ++it) {
    if (it->cover == Cover::some) return Cover::some;
    in_all += intersect({it->begin, it->end}, within).size();
  }
  if (in_all == 0) return Cover::none;
  return in_all == within.size() ? Cover::all : Cover::some;
}

}  // namespace keyhole
