// src/plan/group_heads.cpp
// Heads whose patterns have different texts may still have equal lists (window(5000) and
// window(9000) on 4,096 tokens). They become one group.
#include <algorithm>

#include "plan/draft.h"

namespace keyhole {
namespace {

bool have_equal_lists(const TileLists& lists, int32_t a, int32_t b) {
  const int64_t per_group = lists.lists_per_group();
  for (int64_t i = 0; i < per_group; ++i) {
    const size_t x = size_t(a * per_group + i), y = size_t(b * per_group + i);
    if (lists.list_count[x] != lists.list_count[y]) return false;
    if (!std::equal(lists.runs.begin() + lists.list_begin[x],
                    lists.runs.begin() + lists.list_begin[x] + lists.list_count[x],
                    lists.runs.begin() + lists.list_begin[y])) {
      return false;
    }
  }
  return true;
}

}  // namespace

void group_heads(Draft& draft) {
  TileLists& lists = draft.lists;
  if (lists.groups < 2) return;
  const int64_t per_group = lists.lists_per_group();
  std::vector<int32_t> kept, new_group_of(size_t(lists.groups));
  for (int32_t group = 0; group < lists.groups; ++group) {
    const auto same = std::find_if(kept.begin(), kept.end(),
                                   [&](int32_t k) { return have_equal_lists(lists, k, group); });
    new_group_of[size_t(group)] = int32_t(same - kept.begin());
    if (same == kept.end()) kept.push_back(group);
  }
  if (int32_t(kept.size()) == lists.groups) return;

  TileLists packed = lists;
  packed.list_begin.clear();
  packed.list_count.clear();
  packed.runs.clear();
  for (const int32_t group : kept) {
    for (int64_t i = 0; i < per_group; ++i) {
      const size_t list = size_t(group * per_group + i);
      const auto first = lists.runs.begin() + lists.list_begin[list];
      packed.list_begin.push_back(int64_t(packed.runs.size()));
      packed.list_count.push_back(lists.list_count[list]);
      packed.runs.insert(packed.runs.end(), first, first + lists.list_count[list]);
    }
  }
  packed.groups = int32_t(kept.size());
  for (int32_t& group : packed.group_of) {
    if (group >= 0) group = new_group_of[size_t(group)];
  }
  lists = std::move(packed);
}

}  // namespace keyhole
