// src/base/recent_map.h
// The values of a cache that were used most recently, by key, and no more than so many. Few and
// looked up often: a vector, searched from its most recent end.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"

namespace keyhole {

template <class Key, class Value>
class RecentMap {
 public:
  explicit RecentMap(size_t capacity) : capacity_(capacity) {
    KEYHOLE_ASSERT(capacity > 0, "a cache of nothing");
  }

  // Null: it is not there. From now on it is the most recent one; the pointer is good until then.
  Value* find(const Key& key) {
    const auto known = std::find_if(entries_.rbegin(), entries_.rend(),
                                    [&](const Entry& entry) { return entry.first == key; });
    if (known == entries_.rend()) return nullptr;
    std::rotate(known.base() - 1, known.base(), entries_.end());
    return &entries_.back().second;
  }

  // A key that is not there. Gives back the least recent value where there is no room for it, so
  // that the caller decides when that goes.
  [[nodiscard]] std::optional<Value> insert(const Key& key, Value value) {
    KEYHOLE_ASSERT(find(key) == nullptr, "a key is inserted twice");
    std::optional<Value> evicted;
    if (entries_.size() == capacity_) {
      evicted = std::move(entries_.front().second);
      entries_.erase(entries_.begin());
    }
    entries_.emplace_back(key, std::move(value));
    return evicted;
  }

  size_t size() const { return entries_.size(); }

 private:
  using Entry = std::pair<Key, Value>;
  size_t capacity_;
  std::vector<Entry> entries_;  // the most recent last
};

}  // namespace keyhole
