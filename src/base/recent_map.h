// src/base/recent_map.h
// An LRU cache with a bounded number of entries. They are few and looked up often, so it is a
// vector, searched from its most recent end.
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

  // Null if absent. The entry becomes the most recent one; the pointer is valid until the next
  // call.
  Value* find(const Key& key) {
    const auto known = std::find_if(entries_.rbegin(), entries_.rend(),
                                    [&](const Entry& entry) { return entry.first == key; });
    if (known == entries_.rend()) return nullptr;
    std::rotate(known.base() - 1, known.base(), entries_.end());
    return &entries_.back().second;
  }

  // Inserts a key that is absent. If there is no room it returns the least recent value, so that
  // the caller decides when to destroy it.
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
  std::vector<Entry> entries_;  // most recent last
};

}  // namespace keyhole
