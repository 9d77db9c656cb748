// src/runtime/index_lists.cpp
#include "runtime/index_lists.h"

#include <atomic>
#include <limits>

#include "base/check.h"
#include "base/int_math.h"
#include "base/parallel.h"

namespace keyhole {
namespace {

int64_t integer_at(const void* numbers, bool is_wide, int64_t at) {
  return is_wide ? static_cast<const int64_t*>(numbers)[at]
                 : int64_t{static_cast<const int32_t*>(numbers)[at]};
}
int64_t value_at(const KeyTable& table, int64_t begin, int64_t place) {
  return integer_at(table.entries, table.is_wide, begin + place * table.entry_stride);
}
// How many entries of a list are used.
int64_t used_at(const KeyTable& table, int32_t group, int64_t list) {
  const ListCounts& counts = table.counts;
  if (counts.numbers == nullptr) return table.count;
  return integer_at(counts.numbers, counts.is_wide, table.count_at(group, list));
}

// Calls visit(group, list) for all lists of a view.
template <class Visit>
void for_each_list(const GatherView& view, int threads, Visit visit) {
  constexpr int64_t kAtOnce = 64;
  const int64_t all = view.groups * view.lists;
  parallel_for(ceil_div(all, kAtOnce), threads, [&](int64_t item, int) {
    for (int64_t i = item * kAtOnce; i < std::min(all, (item + 1) * kAtOnce); ++i) {
      visit(int32_t(i / view.lists), i % view.lists);
    }
  });
}

}  // namespace

GatherView key_table(const KeyListView& keys, const TensorView& q, const TensorView& k) {
  const IndexView &indices = keys.indices, &counts = keys.counts;
  const auto stride_of = [](const IndexView& of, int d) {
    return of.shape[d] > 1 ? of.strides[d] : 0;
  };
  const auto stride = [&](int d) { return stride_of(indices, d); };
  const int64_t index_heads = indices.shape[1];
  GatherView view{};
  view.q_len = q.shape[2];
  view.k_len = k.shape[2];
  view.groups = narrow(checked_mul(q.shape[0], index_heads, "attention: heads of the indices"),
                       "attention: batch x heads of the indices");
  // rows_per_list may exceed q_len; then all queries share one list.
  view.rows_per_list = int32_t(std::min(indices.rows_per_list, std::max<int64_t>(1, q.shape[2])));
  view.lists = indices.shape[2];
  view.table = {
      .entries = indices.data,
      .is_wide = indices.is_wide,
      .heads_per_group =
          int32_t(std::max<int64_t>(1, q.shape[1] / std::max<int64_t>(1, index_heads))),
      .groups_per_batch = int32_t(std::max<int64_t>(1, index_heads)),
      .count = int32_t(indices.shape[3]),
      .batch_stride = stride(0),
      .group_stride = stride(1),
      .list_stride = stride(2),
      .entry_stride = indices.shape[3] > 1 ? indices.strides[3] : 1,
      // More than there are name no more keys, but would take room.
      .keys_per_entry = int32_t(std::min(keys.keys_per_entry, std::max<int64_t>(1, k.shape[2]))),
      .is_causal = keys.causal,
      .counts = {.numbers = counts.data,
                 .is_wide = counts.is_wide,
                 .batch_stride = stride_of(counts, 0),
                 .group_stride = stride_of(counts, 1),
                 .list_stride = stride_of(counts, 2)}};
  return view;
}

int64_t index_at(const IndexView& indices, int64_t group, int64_t list, int64_t place) {
  const int64_t heads = indices.shape[1];
  const int64_t at = group / heads * indices.strides[0] + group % heads * indices.strides[1] +
                     list * indices.strides[2] + place * indices.strides[3];
  return indices.is_wide ? static_cast<const int64_t*>(indices.data)[at]
                         : int64_t{static_cast<const int32_t*>(indices.data)[at]};
}

void refuse(const char* who, const GatherView& view, const BadEntry& bad) {
  const int32_t per_batch = view.table.groups_per_batch, per_entry = view.table.keys_per_entry;
  const std::string grouped = per_entry == 1 ? "" : say(", ", per_entry, " to an entry");
  throw Error(
      ErrorKind::usage,
      say(who, ": indices[", bad.group / per_batch, ", ", bad.group % per_batch, ", ", bad.list,
          ", ", bad.place, "] is ", bad.value, "; k has ", view.k_len, " keys", grouped,
          ": accepted are 0 to ", view.table.entries_of(view.k_len) - 1, ", and -1 for none"));
}

BadEntry entry_of(const GatherView& view, int64_t number) {
  const int64_t list = number / view.table.count;
  return {.group = int32_t(list / view.lists),
          .list = list % view.lists,
          .place = number % view.table.count};
}

IndexLists::IndexLists(const GatherView& view, int threads, bool with_transposed, const char* who)
    : view_(view) {
  check_counts(who);
  if (!check(threads, who)) copy_keys(threads);
  if (with_transposed) transpose(threads);
}

void IndexLists::check_counts(const char* who) const {
  const KeyTable& table = view_.table;
  if (table.counts.numbers == nullptr) return;
  for (int32_t group = 0; group < view_.groups; ++group) {
    for (int64_t list = 0; list < view_.lists; ++list) {
      const int64_t used = used_at(table, group, list);
      KEYHOLE_CHECK(used >= 0 && used <= table.count, who, ": counts[",
                    group / table.groups_per_batch, ", ", group % table.groups_per_batch, ", ",
                    list, "] is ", used, "; a list has ", table.count,
                    " entries: accepted are 0 to ", table.count);
    }
  }
}

bool IndexLists::check(int threads, const char* who) const {
  const KeyTable& table = view_.table;
  const int64_t num_entries = table.entries_of(view_.k_len);
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> first_bad = kNone;
  std::atomic<bool> has_gaps = false;  // padding before a key
  for_each_list(view_, threads, [&](int32_t group, int64_t list) {
    const int64_t begin = table.begin_of(group, list);
    bool has_padding = false;
    for (int64_t place = 0; place < used_at(table, group, list); ++place) {
      const int64_t value = value_at(table, begin, place);
      if (value >= 0 && value < num_entries) {
        if (has_padding) has_gaps = true;
        continue;
      }
      has_padding = true;
      if (value == -1) continue;
      const int64_t number = (group * view_.lists + list) * table.count + place;
      int64_t known = first_bad;
      while (number < known && !first_bad.compare_exchange_weak(known, number)) {
      }
    }
  });
  if (first_bad != kNone) {
    BadEntry bad = entry_of(view_, first_bad);
    bad.value = value_at(table, table.begin_of(bad.group, bad.list), bad.place);
    refuse(who, view_, bad);
  }
  const bool is_packed = table.entry_stride == 1 || table.count <= 1;
  const bool is_plain =
      table.counts.numbers == nullptr && table.keys_per_entry == 1 && !table.is_causal;
  return !has_gaps && !table.is_wide && is_packed && is_plain;
}

void IndexLists::copy_keys(int threads) {
  const KeyTable from = view_.table;
  const int64_t room = from.room();
  keys_.assign(size_t(checked_mul(checked_mul(view_.groups, view_.lists, "attention: lists"), room,
                                  "attention: keys of all lists")),
               -1);
  for_each_list(view_, threads, [&](int32_t group, int64_t list) {
    const int64_t begin = from.begin_of(group, list), end = view_.keys_end(list);
    int32_t* to = keys_.data() + (group * view_.lists + list) * room;
    for (int64_t place = 0; place < used_at(from, group, list); ++place) {
      const int64_t value = value_at(from, begin, place);
      if (value < 0) continue;
      const int64_t first = value * from.keys_per_entry;
      for (int64_t key = first; key < std::min(first + from.keys_per_entry, end); ++key) {
        *to++ = int32_t(key);
      }
    }
  });
  KeyTable& table = view_.table;
  table.entries = keys_.data();
  table.is_wide = false;
  table.count = int32_t(room);
  table.entry_stride = 1;
  table.keys_per_entry = 1;
  table.is_causal = false;
  table.counts = {};
  table.list_stride = room;
  table.group_stride = view_.lists * table.list_stride;
  table.batch_stride = from.groups_per_batch * table.group_stride;
}

// A counting sort: the lists of a key stay in order. All groups have the same capacity for pairs.
void IndexLists::transpose(int threads) {
  const KeyTable& table = view_.table;
  const int64_t room = view_.lists * table.count;
  t_begin_.resize(size_t(view_.groups * view_.k_len));
  t_count_.resize(t_begin_.size());
  t_lists_.resize(size_t(view_.groups * room));
  parallel_for(view_.groups, threads, [&](int64_t group, int) {
    const auto for_each_pair = [&](auto visit) {
      for (int64_t list = 0; list < view_.lists; ++list) {
        const int32_t* keys =
            static_cast<const int32_t*>(table.entries) + table.begin_of(int32_t(group), list);
        for (int64_t i = 0; i < table.count && keys[i] >= 0; ++i) visit(keys[i], list);
      }
    };
    int64_t* begin = t_begin_.data() + group * view_.k_len;
    int32_t* count = t_count_.data() + group * view_.k_len;
    for_each_pair([&](int32_t key, int64_t) { ++count[key]; });
    int64_t next = group * room;
    for (int64_t key = 0; key < view_.k_len; ++key) {
      begin[key] = next;
      next += count[key];
      count[key] = 0;
    }
    for_each_pair([&](int32_t key, int64_t list) {
      t_lists_[size_t(begin[key] + count[key]++)] = int32_t(list);
    });
  });
  view_.t_list_begin = t_begin_.data();
  view_.t_list_count = t_count_.data();
  view_.t_lists = t_lists_.data();
}

}  // namespace keyhole
