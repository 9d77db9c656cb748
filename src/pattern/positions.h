// src/pattern/positions.h
// Explicit positions, cut into runs in which each position is one more than the one before.
#pragma once

#include <string>
#include <vector>

#include "pattern/strip.h"

namespace keyhole {

class PositionRuns {
 public:
  struct Run {
    Span indexes;    // into the array
    Position shift;  // position - index, the same all along the run
    Span positions() const { return {indexes.begin + shift, indexes.end + shift}; }
  };

  PositionRuns() = default;
  explicit PositionRuns(std::vector<Position> positions);

  int64_t size() const { return int64_t(positions_.size()); }
  Position operator[](int64_t index) const { return positions_[size_t(index)]; }
  // The runs that hold the indexes of `span`, which must lie inside the array; clipped to it.
  std::vector<Run> within(Span span) const;

 private:
  std::vector<Position> positions_;
  std::vector<Run> runs_;  // ascending indexes, without gaps
};

// The smallest span that holds the positions of all these runs.
Span hull(const PositionRuns::Run* begin, const PositionRuns::Run* end);

// "[0, 1, 2]"; long lists as their size and hash, "<8192 positions #0123456789abcdef>".
std::string list_text(const std::vector<int64_t>& list, const char* plural);

}  // namespace keyhole
