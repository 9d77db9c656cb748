// cli/bench/patterns.h
// Every pattern of the catalog at the size one would use it: a window of 128 tokens rather than the
// three that fit a picture, documents that fill the sequence, strides near the root of the length.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "keyhole/pattern.h"
#include "pattern/catalog.h"

namespace keyhole::bench {

struct SizedPattern {
  std::string name;  // of the catalog
  std::string text;  // short: arrays are described, not listed
  Pattern pattern = dense();
};

// Nothing where the pattern cannot be had at this length: a boolean mask needs L * L bytes. `why`
// then says so.
std::optional<SizedPattern> sized_pattern(const CatalogEntry& entry, int64_t length, int64_t heads,
                                          std::string* why = nullptr);

// Lengths 1 ... 2 * mean - 1 by a fixed multiplicative sequence, until they fill the sequence.
std::vector<int64_t> document_lengths(int64_t length, int64_t mean);
// So many eighths of the pairs, at random: nothing a tile could skip.
Pattern random_mask(int64_t length, uint64_t eighths);

// Speculative decoding: a chain of `context` tokens, and after it a draft tree of 26 nodes (4 first
// guesses, then 8, 8 and 6 below them). The queries are the nodes of the tree.
inline constexpr int64_t kDraftNodes = 26;
Pattern draft_tree(int64_t context);

}  // namespace keyhole::bench
