// src/plan/order_lists.cpp
// Longest lists first, per group: the threads or CTAs that finish early then find only short work
// left.
#include <algorithm>
#include <numeric>

#include "plan/draft.h"

namespace keyhole {

void order_lists(Draft& draft) {
  TileLists& lists = draft.lists;
  const int64_t per_group = lists.lists_per_group();
  std::vector<int64_t> tiles(static_cast<size_t>(per_group));
  lists.order.resize(size_t(lists.groups * per_group));
  for (int32_t group = 0; group < lists.groups; ++group) {
    for (int64_t i = 0; i < per_group; ++i) {
      const size_t list = size_t(group * per_group + i);
      int64_t count = 0;
      for (int32_t r = 0; r < lists.list_count[list]; ++r) {
        count += lists.runs[size_t(lists.list_begin[list] + r)].count;
      }
      tiles[size_t(i)] = count;
    }
    const auto begin = lists.order.begin() + group * per_group;
    std::iota(begin, begin + per_group, 0);
    // Ties by place: the order must not depend on the sorting algorithm.
    std::sort(begin, begin + per_group, [&](int32_t a, int32_t b) {
      return tiles[size_t(a)] != tiles[size_t(b)] ? tiles[size_t(a)] > tiles[size_t(b)] : a < b;
    });
  }
}

}  // namespace keyhole
