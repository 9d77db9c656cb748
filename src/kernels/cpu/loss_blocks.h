// src/kernels/cpu/loss_blocks.h
// The lists of an index loss as blocks of queries against panels of entries. Queries of a plan go
// in blocks, with a bit for each pair; a query with a list of its own goes alone, with its entries.
#pragma once

#include <algorithm>
#include <vector>

#include "base/int_math.h"
#include "kernels/cpu/config.h"
#include "kernels/cpu/entry_panel.h"
#include "kernels/cpu/row_bits.h"
#include "kernels/select_contract.h"

namespace keyhole::cpu {

// Neighbouring queries of one unit, with what they list.
class LossBlock {
 public:
  int64_t unit = 0, first = 0, count = 0;

  void draw(const IndexLossArgs& args, int64_t of_unit, int64_t first_query, int64_t num_queries) {
    unit = of_unit, first = first_query, count = num_queries;
    entries_ = args.k.shape[2];
    has_list_ = lists_alone(args);
    if (args.keys_per_entry > 1) draw_keys(args);
    if (has_list_) {
      const GatherView& view = args.lists.gathers[0];
      const auto listed = keys_of(view, view.group_of_head(unit), first);
      listed_.assign(listed.begin(), listed.end());
      for (int32_t& x : listed_) x = int32_t(x / args.keys_per_entry);
      if (!std::is_sorted(listed_.begin(), listed_.end()))
        std::sort(listed_.begin(), listed_.end());
      if (args.keys_per_entry > 1) {
        listed_.erase(std::unique(listed_.begin(), listed_.end()), listed_.end());
      }
      return;
    }
    const int64_t words = ceil_div(entries_, 64);
    bits_.resize(size_t(count * words));
    needed_.assign(size_t(words), 0);
    for (int64_t i = 0; i < count; ++i) {
      uint64_t* const row = bits_.data() + i * words;
      if (args.keys_per_entry == 1) {
        draw_row(args.lists, unit, first + i, entries_, row);
      } else {
        std::fill_n(row, words, uint64_t{0});
        for_each_bit(row_of_keys(i), k_len_, [&](int64_t key) {
          const int64_t entry = key / args.keys_per_entry;
          row[entry / 64] |= uint64_t{1} << entry % 64;
        });
      }
      for (int64_t x = 0; x < words; ++x) needed_[size_t(x)] |= row[x];
    }
  }

  // Whether query i lists a key, where an entry stands for several.
  bool has_key(int64_t i, int64_t key) const {
    return key < k_len_ && (row_of_keys(i)[key / 64] >> key % 64 & 1) != 0;
  }

  // Room for a value of every listed entry of one query, in whole panels.
  static int64_t columns(const IndexLossArgs& args) {
    const int64_t most =
        lists_alone(args) ? int64_t{args.lists.gathers[0].table.room()} : args.k.shape[2];
    return round_up(std::max<int64_t>(1, most), kPanel);
  }

  // The pairs of query i in a panel, one bit each.
  uint64_t pairs(int64_t i, const EntryPanel& panel) const {
    if (has_list_) return panel.width == 64 ? ~uint64_t{0} : (uint64_t{1} << panel.width) - 1;
    return bits_[size_t(i * ceil_div(entries_, 64) + panel.column / 64)];
  }

  // Calls visit(panel) for the panels with entries in [begin, end), multiples of kPanel.
  template <class Visit>
  void for_each_panel(int64_t begin, int64_t end, Visit visit) const {
    if (has_list_) {
      const auto low = std::lower_bound(listed_.begin(), listed_.end(), begin);
      const auto high = std::lower_bound(low, listed_.end(), end);
      for (int64_t x = low - listed_.begin(); x < high - listed_.begin(); x += kPanel) {
        visit(EntryPanel{x, std::min(kPanel, high - listed_.begin() - x), listed_.data() + x});
      }
      return;
    }
    for (int64_t key = begin; key < std::min(end, entries_); key += kPanel) {
      if (needed_[size_t(key / kPanel)] == 0) continue;
      visit(EntryPanel{key, std::min(kPanel, entries_ - key), nullptr});
    }
  }

 private:
  void draw_keys(const IndexLossArgs& args) {
    k_len_ = args.target_k.shape[2];
    key_words_ = ceil_div(k_len_, 64);
    key_bits_.resize(size_t(count * key_words_));
    for (int64_t i = 0; i < count; ++i) {
      draw_row(args.lists, unit, first + i, k_len_, key_bits_.data() + i * key_words_);
    }
  }
  const uint64_t* row_of_keys(int64_t i) const { return key_bits_.data() + i * key_words_; }

  int64_t entries_ = 0, k_len_ = 0, key_words_ = 0;
  bool has_list_ = false;
  std::vector<int32_t> listed_;          // entries, ascending
  std::vector<uint64_t> bits_, needed_;  // of each query; of any
  std::vector<uint64_t> key_bits_;       // of each query, where an entry stands for several keys
};

// The queries that count, in blocks.
inline std::vector<QueryRange> blocks_of_queries(const IndexLossArgs& args) {
  constexpr int64_t kMostQueries = 32;
  const int64_t most = lists_alone(args) ? 1 : kMostQueries;
  std::vector<QueryRange> blocks;
  const auto add = [&](int64_t query) {
    const bool goes_on = !blocks.empty() && blocks.back().count < most &&
                         blocks.back().first + blocks.back().count == query;
    if (goes_on) {
      ++blocks.back().count;
    } else {
      blocks.push_back({query, 1});
    }
  };
  if (args.has_rows) {
    for (int64_t i = 0; i < args.num_rows; ++i) add(args.rows[i]);
  } else {
    for (int64_t query = 0; query < args.q.shape[2]; ++query) add(query);
  }
  return blocks;
}

}  // namespace keyhole::cpu
