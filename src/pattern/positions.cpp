// src/pattern/positions.cpp
// Arrays of explicit positions: their runs and their text.
#include "pattern/positions.h"

#include <algorithm>

#include "base/check.h"
#include "base/hash.h"

namespace keyhole {
namespace {

constexpr size_t kLongestPrintedList = 4096;

}  // namespace

PositionRuns::PositionRuns(std::vector<Position> positions) : positions_(std::move(positions)) {
  for (int64_t i = 0; i < size(); ++i) {
    const Position shift = positions_[size_t(i)] - i;
    if (runs_.empty() || runs_.back().shift != shift) runs_.push_back({{i, i}, shift});
    runs_.back().indexes.end = i + 1;
  }
}

std::vector<PositionRuns::Run> PositionRuns::within(Span span) const {
  std::vector<Run> out;
  const auto ends_before = [&](const Run& run) { return run.indexes.end <= span.begin; };
  for (auto it = std::partition_point(runs_.begin(), runs_.end(), ends_before);
       it != runs_.end() && it->indexes.begin < span.end; ++it) {
    out.push_back({intersect(it->indexes, span), it->shift});
  }
  return out;
}

Span hull(const PositionRuns::Run* begin, const PositionRuns::Run* end) {
  Span out = begin->positions();
  for (const PositionRuns::Run* run = begin + 1; run != end; ++run) {
    out.begin = std::min(out.begin, run->positions().begin);
    out.end = std::max(out.end, run->positions().end);
  }
  return out;
}

std::string list_text(const std::vector<int64_t>& list, const char* plural) {
  if (list.size() > kLongestPrintedList) {
    Fnv1a64 hash;
    hash.add(list);
    return say("<", list.size(), " ", plural, " #", to_hex(hash.value()), ">");
  }
  std::string text;
  for (const int64_t number : list) text += say(text.empty() ? "" : ", ", number);
  return "[" + text + "]";
}

}  // namespace keyhole
