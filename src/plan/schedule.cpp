// src/plan/schedule.cpp
// Scheduling is a straight list of passes over one draft, like compiling. Each pass is a plain
// function in the file of its name, and its result is verified before the next one runs.
#include "plan/schedule.h"

#include <utility>

namespace keyhole {
namespace {

struct Pass {
  const char* name;
  void (*run)(ScheduleDraft& draft);
  void (*verify)(const ScheduleDraft& draft);
};

constexpr Pass kPasses[] = {
    {"repeat_groups", repeat_groups, verify_groups},
    {"permute_bitmaps", permute_bitmaps, verify_bitmaps},
    {"deal_work", deal_work, verify_work},
    {"deal_shares", deal_shares, verify_shares},
    {"level_loads", level_loads, verify_levelled},
};

}  // namespace

ScheduledTiles schedule(const TileView& lists, int64_t planned_heads, const Target& target) {
  ScheduleDraft draft{lists, {lists.group_of, size_t(planned_heads)}, target, {}};
  for (const Pass& pass : kPasses) {
    pass.run(draft);
    pass.verify(draft);
  }
  return std::move(draft.made);
}

}  // namespace keyhole
