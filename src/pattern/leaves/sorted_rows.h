// src/pattern/leaves/sorted_rows.h
// Rows of a compressed sparse matrix, checked, sorted and without duplicates: what csr and tiles
// share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "pattern/strip.h"

namespace keyhole {

class SortedRows {
 public:
  // Row i holds keys[offsets[i] .. offsets[i + 1]), each in [0, limit]. `name` is for the errors.
  SortedRows(const char* name, const std::vector<int64_t>& offsets, std::vector<int64_t> keys,
             int64_t limit)
      : keys_(std::move(keys)) {
    check(name, offsets, limit);
    begins_.reserve(offsets.size());
    begins_.push_back(0);
    auto end = keys_.begin();  // of what is kept
    for (size_t row = 0; row + 1 < offsets.size(); ++row) {
      const auto first = keys_.begin() + offsets[row], last = keys_.begin() + offsets[row + 1];
      if (!std::is_sorted(first, last)) std::sort(first, last);
      end = std::copy(first, std::unique(first, last), end);
      begins_.push_back(end - keys_.begin());
    }
    keys_.erase(end, keys_.end());
    if (!keys_.empty()) last_key_ = *std::max_element(keys_.begin(), keys_.end());
  }

  int64_t num_rows() const { return int64_t(begins_.size()) - 1; }
  int64_t num_keys() const { return int64_t(keys_.size()); }
  int64_t last_key() const { return last_key_; }  // the largest of all; -1: there is none
  std::span<const int64_t> row(int64_t i) const {
    return std::span(keys_).subspan(size_t(begins_[size_t(i)]),
                                    size_t(begins_[size_t(i) + 1] - begins_[size_t(i)]));
  }
  bool contains(int64_t i, int64_t key) const {
    if (i < 0 || i >= num_rows()) return false;
    const std::span<const int64_t> keys = row(i);
    return std::binary_search(keys.begin(), keys.end(), key);
  }
  // Appends the keys of a row that lie inside `within`.
  void list(int64_t i, Span within, std::vector<int64_t>& out) const {
    const std::span<const int64_t> keys = row(i);
    const auto first = std::lower_bound(keys.begin(), keys.end(), within.begin);
    out.insert(out.end(), first, std::lower_bound(first, keys.end(), within.end));
  }
  // The same of at most 64 keys as bits.
  uint64_t word(int64_t i, Span within) const {
    const std::span<const int64_t> keys = row(i);
    uint64_t bits = 0;
    for (auto key = std::lower_bound(keys.begin(), keys.end(), within.begin);
         key != keys.end() && *key < within.end; ++key) {
      bits |= uint64_t{1} << (*key - within.begin);
    }
    return bits;
  }
  std::string hash_text() const {
    Fnv1a64 hash;
    hash.add(begins_);
    hash.add(keys_);
    return to_hex(hash.value());
  }

 private:
  void check(const char* name, const std::vector<int64_t>& offsets, int64_t limit) const {
    KEYHOLE_CHECK(!offsets.empty(), name, ": offsets is empty; expected one number more than rows");
    KEYHOLE_CHECK(offsets.front() == 0, name, ": offsets begin with ", offsets.front(),
                  "; expected 0");
    for (size_t i = 1; i < offsets.size(); ++i) {
      KEYHOLE_CHECK(offsets[i] >= offsets[i - 1], name, ": offsets fall from ", offsets[i - 1],
                    " to ", offsets[i], " at ", i, "; they must not decrease");
    }
    KEYHOLE_CHECK(offsets.back() == num_keys(), name, ": offsets end with ", offsets.back(),
                  " but there are ", num_keys(), " keys; the two must be equal");
    for (size_t i = 0; i < keys_.size(); ++i) {
      KEYHOLE_CHECK(keys_[i] >= 0 && keys_[i] <= limit, name, ": key ", i, " is ", keys_[i],
                    "; expected 0 to ", limit);
    }
  }

  std::vector<int64_t> begins_, keys_;
  int64_t last_key_ = -1;
};

}  // namespace keyhole
