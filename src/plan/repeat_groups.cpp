// src/plan/repeat_groups.cpp
// A plan made for one head serves all heads of a call. Any other plan serves exactly its own heads.
#include <algorithm>

#include "base/check.h"
#include "plan/schedule.h"

namespace keyhole {

std::vector<int32_t> groups_of_heads(std::span<const int32_t> planned_of, int64_t num_heads) {
  if (planned_of.size() == 1) return std::vector<int32_t>(size_t(num_heads), planned_of[0]);
  KEYHOLE_ASSERT(num_heads <= int64_t(planned_of.size()), "repeat_groups: a plan for ",
                 planned_of.size(), " heads, a call with ", num_heads);
  const auto groups = planned_of.first(size_t(num_heads));
  return {groups.begin(), groups.end()};
}

void repeat_groups(ScheduleDraft& draft) {
  ScheduledTiles& made = draft.made;
  made.group_of = groups_of_heads(draft.planned_of, draft.target.num_heads);
  made.is_one_group = std::ranges::all_of(made.group_of, [](int32_t group) { return group == 0; });
}

}  // namespace keyhole
