// src/plan/transpose.cpp
// The same lists by key tile (or by key), for the backward pass. Runs stay runs: a run begins or
// ends only where the full tiles of one query tile differ from those of the previous one.
// Transposing the causal plan of 1,048,576 tokens therefore touches thousands of entries, not the
// 33 million tiles it covers.
#include <algorithm>

#include "plan/compile.h"

namespace keyhole {
namespace {

struct Event {
  int64_t list;  // the transposed list it belongs to
  TileRun run;
};

// Visits the key tiles covered by the full runs of `a` but not by those of `b`; both are ascending.
template <class Visit>
void for_each_only_in(std::span<const TileRun> a, std::span<const TileRun> b, Visit visit) {
  size_t j = 0;
  for (const TileRun& run : a) {
    if (run.bitmap != kFull) continue;
    int32_t tile = run.tile;
    const int32_t end = run.tile + run.count;
    while (tile < end) {
      while (j < b.size() && (b[j].bitmap != kFull || b[j].tile + b[j].count <= tile)) ++j;
      const int32_t next = j < b.size() ? std::min(end, b[j].tile) : end;
      for (; tile < next; ++tile) visit(tile);
      if (j < b.size() && tile < end) tile = std::min(end, b[j].tile + b[j].count);
    }
  }
}

// The lists of one group and class, by key tile. A run of full tiles is open from the query tile
// where it began until the first one without it.
void transpose_class(const TileLists& lists, int64_t first_list, int64_t first_t_list,
                     std::vector<Event>& events) {
  std::vector<int32_t> open_since(size_t(lists.k_tiles), -1);
  std::span<const TileRun> before;
  for (int32_t q_tile = 0; q_tile <= lists.q_tiles; ++q_tile) {
    std::span<const TileRun> now;
    if (q_tile < lists.q_tiles) {
      const size_t list = size_t(first_list + q_tile);
      now = {lists.runs.data() + lists.list_begin[list], size_t(lists.list_count[list])};
    }
    for_each_only_in(before, now, [&](int32_t k_tile) {
      const int32_t begin = open_since[size_t(k_tile)];
      events.push_back({first_t_list + k_tile, {begin, q_tile - begin, kFull}});
    });
    for_each_only_in(now, before, [&](int32_t k_tile) { open_since[size_t(k_tile)] = q_tile; });
    for (const TileRun& run : now) {
      if (run.bitmap != kFull) events.push_back({first_t_list + run.tile, {q_tile, 1, run.bitmap}});
    }
    before = now;
  }
}

// Sets begin and count of each list from its number of entries.
template <class Lists>
void begin_lists(const std::vector<int32_t>& count, Lists& begin) {
  begin.resize(count.size());
  int64_t sum = 0;
  for (size_t i = 0; i < count.size(); ++i) {
    begin[i] = sum;
    sum += count[i];
  }
}

}  // namespace

void transpose(TileLists& lists) {
  if (lists.is_transposed() && !lists.t_list_count.empty()) return;
  std::vector<Event> events;  // ascending query tile within each list
  for (int64_t i = 0; i < int64_t{lists.groups} * lists.classes(); ++i) {
    transpose_class(lists, i * lists.q_tiles, i * lists.k_tiles, events);
  }
  lists.t_list_count.assign(size_t(lists.groups) * size_t(lists.classes()) * size_t(lists.k_tiles),
                            0);
  for (const Event& event : events) ++lists.t_list_count[size_t(event.list)];
  begin_lists(lists.t_list_count, lists.t_list_begin);
  std::vector<int64_t> next = lists.t_list_begin;
  lists.t_runs.resize(events.size());
  for (const Event& event : events) lists.t_runs[size_t(next[size_t(event.list)]++)] = event.run;
}

void transpose(KeyLists& lists) {
  if (lists.is_transposed() && !lists.t_list_count.empty()) return;
  lists.t_list_count.assign(size_t(lists.groups) * size_t(lists.k_len), 0);
  const auto for_each_pair = [&lists](auto visit) {
    for (int64_t list = 0; list < int64_t{lists.groups} * lists.q_len; ++list) {
      const int64_t first_t_list = list / lists.q_len * lists.k_len;
      for (int32_t i = 0; i < lists.list_count[size_t(list)]; ++i) {
        const int32_t key = lists.keys[size_t(lists.list_begin[size_t(list)] + i)];
        visit(size_t(first_t_list + key), int32_t(list % lists.q_len));
      }
    }
  };
  for_each_pair([&](size_t t_list, int32_t) { ++lists.t_list_count[t_list]; });
  begin_lists(lists.t_list_count, lists.t_list_begin);
  std::vector<int64_t> next = lists.t_list_begin;
  lists.t_lists.resize(lists.keys.size());
  for_each_pair([&](size_t t_list, int32_t list) { lists.t_lists[size_t(next[t_list]++)] = list; });
}

}  // namespace keyhole
