// src/plan/deal_shares.cpp
#include "plan/deal_shares.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <ranges>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/int_math.h"
#include "plan/direction.h"
#include "plan/schedule.h"

namespace keyhole {
namespace {

// Costs are integers, in hundredths of a tile, so that equal loads compare equal.
constexpr int64_t kTileCost = 100;

// If the longest item is less than 1/kSmallPart of a CTA's load, items may come in any order.
constexpr int64_t kSmallPart = 50;

bool is_longer(const WorkItem& a, const WorkItem& b) { return a.num_tiles > b.num_tiles; }
bool is_before(const WorkItem& a, const WorkItem& b) {
  return a.list != b.list ? a.list < b.list : a.slot < b.slot;
}
// Query heads that share keys take turns, so their order counts, too.
bool is_before_in_order(const WorkItem& a, const WorkItem& b) {
  return a.list == b.list && a.head != b.head ? a.head < b.head : is_before(a, b);
}
bool is_behind(const WorkItem& a, const WorkItem& b) { return is_before(b, a); }

// The CTAs by load so far; ties go to the lower CTA.
class Loads {
 public:
  explicit Loads(int32_t num_ctas) {
    for (int32_t cta = 0; cta < num_ctas; ++cta) heap_.push_back({0, cta});
  }
  int64_t longest() const { return longest_; }
  int64_t total() const { return total_; }

  // Assigns work to the CTA with the least load.
  int32_t add(int64_t cost) {
    std::pop_heap(heap_.begin(), heap_.end(), comes_later);
    heap_.back().load += cost;
    longest_ = std::max(longest_, heap_.back().load);
    total_ += cost;
    const int32_t cta = heap_.back().cta;
    std::push_heap(heap_.begin(), heap_.end(), comes_later);
    return cta;
  }

 private:
  struct Load {
    int64_t load;
    int32_t cta;
  };
  static bool comes_later(const Load& a, const Load& b) {
    return a.load != b.load ? a.load > b.load : a.cta > b.cta;
  }
  std::vector<Load> heap_;
  int64_t longest_ = 0, total_ = 0;
};

class Dealer {
 public:
  Dealer(const TileView& view, const DealtWork& work, const ShareDeal& deal)
      : lists_(view, deal.is_transposed),
        work_(work),
        deal_(deal),
        // At least 1: every CTA must get an item, even of empty lists.
        item_cost_(std::max<int64_t>(1, std::llround(deal.tiles_per_item * kTileCost))),
        items_(work.items) {
    for (WorkItem& item : items_) skip_runs(item);
  }

  DealtShares deal() {
    const int64_t kv_heads = int64_t(deal_.group_of.size()) / deal_.heads_per_kv_head;
    const int64_t per_section = deal_.heads_per_section / deal_.heads_per_kv_head;
    const int64_t sections = ceil_div(kv_heads, per_section);
    std::vector<WorkItem> all;
    std::vector<size_t> begins = {0};  // of each section
    for (int64_t s = 0; s < sections; ++s) {
      // Sections of nearly equal size: a last section of one head would leave CTAs idle.
      const int64_t first = kv_heads * s / sections, end = kv_heads * (s + 1) / sections;
      add_section(int32_t(first * deal_.heads_per_kv_head), int32_t(end * deal_.heads_per_kv_head),
                  all);
      begins.push_back(all.size());
    }
    narrow(int64_t(all.size()), "attention: work items of a call; split the batch");
    const Order comes_first = deal_.in_list_order ? is_before_in_order : order_of(all);
    for (size_t s = 0; s + 1 < begins.size(); ++s) {
      sort_in_place(std::span(all).subspan(begins[s], begins[s + 1] - begins[s]), comes_first);
    }
    if (comes_first == is_longer) move_short_to_the_end(all);
    if (deal_.in_list_order) return one_by_one(all);
    Loads loads(deal_.num_ctas);
    std::vector<int32_t> cta_of;  // [all]
    for (const WorkItem& item : all) cta_of.push_back(loads.add(cost_of(item)));
    DealtShares shares = by_cta(all, cta_of);
    shares.longest = double(loads.longest()) / kTileCost;
    shares.mean = double(loads.total()) / kTileCost / deal_.num_ctas;
    return shares;
  }

 private:
  // Lets a chunk begin at the run it starts in: the single thread that reads lists should not walk
  // there.
  void skip_runs(WorkItem& item) const {
    while (item.num_runs > 0 && lists_.runs[item.first_run].count <= item.first_tile) {
      item.first_tile -= lists_.runs[item.first_run].count;
      ++item.first_run;
      --item.num_runs;
    }
  }

  using Order = bool (*)(const WorkItem&, const WorkItem&);
  int64_t cost_of(const WorkItem& item) const { return kTileCost * item.num_tiles + item_cost_; }

  // Longest first. But if the longest matters little, list after list from the end that has more
  // work: neighbours read the same keys, and a cache too small for a whole section still holds what
  // some neighbours read.
  Order order_of(const std::vector<WorkItem>& all) const {
    int64_t longest = 0, total = 0, behind_the_middle = 0;
    for (const WorkItem& item : all) {
      const int64_t cost = cost_of(item);
      longest = std::max(longest, cost);
      total += cost;
      behind_the_middle += 2 * item.list >= lists_.lists_per_group ? cost : -cost;
    }
    if (longest * kSmallPart > total / deal_.num_ctas) return is_longer;
    return behind_the_middle > 0 ? is_behind : is_before;
  }

  // Among items of equal rank, the same list of every head comes before the next list, so that
  // heads stay together.
  void add_section(int32_t first_head, int32_t end_head, std::vector<WorkItem>& all) const {
    for (int32_t place = 0; place < work_.items_per_group; ++place) {
      for (int32_t head = first_head; head < end_head; ++head) {
        WorkItem item = item_of(head, place);
        if (item.list < 0 || !lists_.has_rows(item.list)) continue;
        item.head = head;
        all.push_back(item);
      }
    }
  }

  // Moves about one item per CTA, the shortest of all sections, to the end: they even out the loads
  // that the longer ones leave.
  void move_short_to_the_end(std::vector<WorkItem>& all) const {
    if (all.empty()) return;
    const int32_t longest = std::ranges::max_element(all, {}, &WorkItem::num_tiles)->num_tiles;
    std::vector<size_t> places;  // of the shorter ones
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i].num_tiles < longest) places.push_back(i);
    }
    std::ranges::sort(places, {}, [&](size_t i) { return std::pair(all[i].num_tiles, i); });
    const int64_t wanted = std::max<int64_t>(deal_.num_ctas, deal_.items_at_end);
    places.resize(std::min(places.size(), size_t(wanted)));
    std::vector<bool> is_last(all.size());
    for (const size_t place : places) is_last[place] = true;
    std::vector<WorkItem> moved;
    for (size_t i = 0; i < all.size(); ++i) {
      if (!is_last[i]) moved.push_back(all[i]);
    }
    for (const size_t place : std::views::reverse(places)) moved.push_back(all[place]);
    all = std::move(moved);
  }

  // A stable sort. By indices, since std::stable_sort uses what is deprecated in C++20.
  static void sort_in_place(std::span<WorkItem> section, Order comes_first) {
    if (std::ranges::is_sorted(section, comes_first)) return;
    const std::vector<WorkItem> unsorted(section.begin(), section.end());
    std::vector<size_t> places(section.size());
    std::iota(places.begin(), places.end(), size_t{0});
    std::ranges::sort(places, [&](size_t a, size_t b) {
      if (comes_first(unsorted[a], unsorted[b])) return true;
      return !comes_first(unsorted[b], unsorted[a]) && a < b;
    });
    for (size_t i = 0; i < places.size(); ++i) section[i] = unsorted[places[i]];
  }

  // A head without lists in this part has as many empty ones: its rows must still be finished.
  WorkItem item_of(int32_t head, int32_t place) const {
    const int32_t group = deal_.group_of[size_t(head)];
    if (group >= 0) return items_[size_t(group) * size_t(work_.items_per_group) + size_t(place)];
    return {place < lists_.lists_per_group ? place : -1, 0, 0, -1};
  }

  DealtShares by_cta(const std::vector<WorkItem>& all, const std::vector<int32_t>& cta_of) const {
    const size_t num_ctas = std::min(size_t(deal_.num_ctas), all.size());
    std::vector<std::vector<WorkItem>> share_of(num_ctas);
    for (size_t i = 0; i < all.size(); ++i) share_of[size_t(cta_of[i])].push_back(all[i]);
    DealtShares shares{.items = {}, .num_ctas = int32_t(num_ctas)};
    const auto add = [&](const WorkItem& item) {
      shares.items.push_back({item, first_run(item), kLastItem});
      return int32_t(shares.items.size()) - 1;
    };
    for (const std::vector<WorkItem>& share : share_of) add(share.front());  // every CTA has one
    for (size_t cta = 0; cta < num_ctas; ++cta) {
      auto last = int32_t(cta);
      for (const WorkItem& item : std::span(share_of[cta]).subspan(1)) {
        const int32_t at = add(item);  // before indexing: the items may be reallocated
        shares.items[size_t(last)].next = at;
        last = at;
      }
    }
    return shares;
  }
  // To be drawn. Who follows the links gets item n in CTA n modulo the number of CTAs.
  DealtShares one_by_one(const std::vector<WorkItem>& all) const {
    const size_t num_ctas = std::min(size_t(deal_.num_ctas), all.size());
    DealtShares shares{.items = {}, .num_ctas = int32_t(num_ctas)};
    for (size_t i = 0; i < all.size(); ++i) {
      const size_t next = i + num_ctas;
      shares.items.push_back(
          {all[i], first_run(all[i]), next < all.size() ? int32_t(next) : kLastItem});
    }
    return shares;
  }
  TileRun first_run(const WorkItem& item) const {
    if (item.num_tiles == 0) return {0, 0, kFull};
    const TileRun& run = lists_.runs[item.first_run];
    return {run.tile + item.first_tile, run.count - item.first_tile, run.bitmap};
  }

  const Direction lists_;
  const DealtWork& work_;
  const ShareDeal& deal_;
  const int64_t item_cost_;
  std::vector<WorkItem> items_;  // as in work_; chunks with their own runs
};

}  // namespace

DealtShares deal_shares(const TileView& view, const DealtWork& work, const ShareDeal& deal) {
  KEYHOLE_ASSERT(deal.num_ctas > 0 && deal.heads_per_kv_head > 0 &&
                     deal.heads_per_section >= deal.heads_per_kv_head,
                 "work for ", deal.num_ctas, " CTAs in sections of ", deal.heads_per_section, " / ",
                 deal.heads_per_kv_head, " heads");
  return Dealer(view, work, deal).deal();
}

// A kernel with persistent CTAs processes the lists of one direction.
ShareDeal share_deal(const ScheduleDraft& draft) {
  const Target& target = draft.target;
  return {.group_of = draft.made.group_of,
          .is_transposed = target.with_transposed,
          .num_ctas = target.ctas.num_ctas,
          .heads_per_section = target.ctas.heads_per_section,
          .heads_per_kv_head = target.ctas.heads_per_kv_head,
          .tiles_per_item = target.ctas.tiles_per_item,
          .in_list_order = target.ctas.in_list_order};
}
void deal_shares(ScheduleDraft& draft) {
  if (draft.target.ctas.num_ctas == 0) return;
  ScheduledWork& followed =
      draft.target.with_transposed ? draft.made.transposed : draft.made.forward;
  followed.shares = deal_shares(draft.lists, followed.work, share_deal(draft));
}

}  // namespace keyhole
