// src/pattern/leaves/segments.h
// What leaves share when they answer strip(): clipping a range to the keys asked for, and blurring
// an exact strip that is finer than its caller cares for.
#pragma once

#include <algorithm>

#include "pattern/strip.h"

namespace keyhole {

// Appends the part of [begin, end) that lies inside k.
inline void append_inside(Span k, Position begin, Position end, Cover cover, Strip& out) {
  out.append(std::max(begin, k.begin), std::min(end, k.end), cover);
}

// Appends `exact` with gaps shorter than grain, and short `all` segments that touch another
// segment, turned into `some`: at most about two segments per grain remain. A short segment on its
// own stays what it is.
inline void append_blurred(const Strip& exact, Position grain, Strip& out) {
  for (size_t i = 0; i < exact.size(); ++i) {
    const Segment& now = exact[i];
    const bool joins_left = i > 0 && now.begin - exact[i - 1].end < grain;
    const bool joins_right = i + 1 < exact.size() && exact[i + 1].begin - now.end < grain;
    if (joins_left) out.append(exact[i - 1].end, now.begin, Cover::some);
    const bool is_short = now.end - now.begin < grain;
    out.append(now.begin, now.end,
               is_short && (joins_left || joins_right) ? Cover::some : now.cover);
  }
}

}  // namespace keyhole
