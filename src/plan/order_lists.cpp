// src/plan/order_lists.cpp
// Longest lists first, per group: threads or CTAs that finish early then find only short work left.
#include <algorithm>
#include <vector>

#include "plan/draft.h"

namespace keyhole {

void order_lists(Draft& draft) {
  TileLists& lists = draft.lists;
  const int64_t per_group = lists.lists_per_group();
  // A sort key for each list: first by its number of tiles (below 2^31), longest first, then by its
  // index, so that the order does not depend on the sorting algorithm.
  std::vector<uint64_t> keys(static_cast<size_t>(per_group));
  lists.order.resize(size_t(lists.groups * per_group));
  for (int32_t group = 0; group < lists.groups; ++group) {
    for (int64_t i = 0; i < per_group; ++i) {
      const size_t list = size_t(group * per_group + i);
      uint32_t tiles = 0;
      for (int32_t r = 0; r < lists.list_count[list]; ++r) {
        tiles += uint32_t(lists.runs[size_t(lists.list_begin[list] + r)].count);
      }
      keys[size_t(i)] = uint64_t{~tiles} << 32 | uint64_t(i);
    }
    std::ranges::sort(keys);
    std::ranges::transform(keys, lists.order.begin() + group * per_group,
                           [](uint64_t key) { return int32_t(key & 0xffffffff); });
  }
}

}  // namespace keyhole
