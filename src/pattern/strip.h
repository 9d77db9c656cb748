// src/pattern/strip.h
// A strip: what a band of neighbouring queries sees of the keys, as a few segments. This is the
// question that makes compiling cheap: a band of 128 causal queries over 1,048,576 keys is two
// segments, not 8,192 tiles.
//
//   causal, queries [4, 6)      k  0 1 2 3 4 5 6 7
//                          q = 4   # # # # # . . .
//                          q = 5   # # # # # # . .
//                                  [0,5) all  [5,6) some      keys not listed: none
#pragma once

#include <cstdint>
#include <vector>

#include "keyhole/pattern.h"
#include "pattern/cover.h"

namespace keyhole {

struct Span {  // half-open: [begin, end)
  Position begin = 0, end = 0;
  Position size() const { return end > begin ? end - begin : 0; }
  bool is_empty() const { return end <= begin; }
  bool operator==(const Span&) const = default;
};
inline Span intersect(Span a, Span b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

struct Segment {
  Position begin, end;
  Cover cover;  // some or all; what is not listed is none
  bool operator==(const Segment&) const = default;
};

// Ascending and disjoint; neighbours of equal cover are one segment.
class Strip {
 public:
  // Appends behind what is there; empty segments and `none` are dropped.
  void append(Position begin, Position end, Cover cover) {
    if (begin >= end || cover == Cover::none) return;
    if (!segments_.empty() && segments_.back().end == begin && segments_.back().cover == cover) {
      segments_.back().end = end;
    } else {
      if (segments_.capacity() == 0) segments_.reserve(kUsual);
      segments_.push_back({begin, end, cover});
    }
  }
  void clear() { segments_.clear(); }
  bool empty() const { return segments_.empty(); }
  size_t size() const { return segments_.size(); }
  auto begin() const { return segments_.begin(); }
  auto end() const { return segments_.end(); }
  const Segment& operator[](size_t i) const { return segments_[i]; }
  const Segment& back() const { return segments_.back(); }
  bool operator==(const Strip&) const = default;

 private:
  static constexpr size_t kUsual = 4;  // segments: room for them is asked for once
  std::vector<Segment> segments_;
};

Strip both(const Strip& a, const Strip& b);    // a & b
Strip either(const Strip& a, const Strip& b);  // a | b
Strip complement(const Strip& a, Span keys);   // ~a inside keys
// Of several bands seen as one: a key is `all` when it is in each, `none` when in none, else
// `some`.
Strip joined(const Strip& a, const Strip& b);
// The cover of the keys `within` according to a strip that was asked for at least these keys.
Cover cover_of(const Strip& strip, Span within);

}  // namespace keyhole
