// tests/plan/lists_by_length.h
#pragma once

#include <vector>

#include "plan/view.h"

namespace keyhole::test {

// A part of one group, for any number of heads, whose lists have these lengths, each one run of
// full tiles.
class ListsByLength {
 public:
  explicit ListsByLength(const std::vector<int32_t>& lengths) : counts_(lengths.size(), 1) {
    for (const int32_t length : lengths) {
      begins_.push_back(int64_t(runs_.size()));
      runs_.push_back({0, length, kFull});
    }
    view_.tile = {64, 64};
    view_.stride = view_.classes = view_.groups = 1;
    view_.q_tiles = int32_t(lengths.size());
    view_.q_len = 64 * int64_t(lengths.size());
    view_.list_begin = begins_.data();
    view_.list_count = counts_.data();
    view_.runs = runs_.data();
  }
  ListsByLength(const ListsByLength&) = delete;  // the view points into it
  ListsByLength& operator=(const ListsByLength&) = delete;

  const TileView& view() const { return view_; }

 private:
  std::vector<int64_t> begins_;
  std::vector<int32_t> counts_;
  std::vector<TileRun> runs_;
  TileView view_{};
};

}  // namespace keyhole::test
