// cli/bench/patterns.cpp
// Takes a row of the catalog and a length, gives the pattern to measure.
#include "cli/bench/patterns.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/int_math.h"

namespace keyhole::bench {
namespace {

constexpr int64_t kLongestMask = 8192;  // L * L bytes, and every pair is visited
constexpr int64_t kTile = 64;
constexpr int64_t kMeanDocument = 512;

// A fixed multiplicative sequence: the same numbers on every machine.
struct Sequence {
  uint64_t x;
  uint64_t next() { return x = x * 6364136223846793005u + 1442695040888963407u; }
  int64_t below(int64_t count) { return int64_t((next() >> 33) % uint64_t(count)); }
};

std::vector<int64_t> tree_parents(int64_t length) {
  std::vector<int64_t> parents(static_cast<size_t>(length));
  for (int64_t i = 0; i < length; ++i) parents[size_t(i)] = i == 0 ? -1 : (i - 1) / 4;
  return parents;
}

// The power of two nearest to the root of the length: where local and far keys balance.
int64_t root_stride(int64_t length) {
  return int64_t{1} << std::max(0, int(std::lround(std::log2(double(length)) / 2)));
}

// The largest divisor of the length that is no larger than its root or so: an image has as many
// pixels as there are tokens.
int64_t divisor_near_root(int64_t length) {
  int64_t divisor = std::min(root_stride(length), length);
  while (length % divisor != 0) --divisor;
  return divisor;
}

// A band of three tiles from lists of tiles; causal, as a block mask stores it: full tiles and one
// bitmap.
Pattern tile_band(int64_t length, bool is_causal) {
  const int64_t count = ceil_div(length, kTile);
  std::vector<int64_t> offsets = {0}, keys, bitmap;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t last = is_causal ? i : i + 1;
    for (int64_t k = std::max<int64_t>(0, last - 2); k <= std::min(count - 1, last); ++k) {
      keys.push_back(k), bitmap.push_back(k == i ? 0 : -1);
    }
    offsets.push_back(int64_t(keys.size()));
  }
  if (!is_causal) return tiles(kTile, kTile, offsets, keys);
  std::vector<uint8_t> diagonal(size_t(kTile * kTile));
  for (int64_t q = 0; q < kTile; ++q) {
    for (int64_t k = 0; k <= q; ++k) diagonal[size_t(q * kTile + k)] = 1;
  }
  return bitmaps(kTile, kTile, offsets, keys, bitmap, diagonal);
}

// 32 scattered keys for each query, as a selection step would leave them.
Pattern scattered_pairs(int64_t length) {
  std::vector<int64_t> offsets = {0}, keys;
  Sequence numbers{54321};
  for (int64_t q = 0; q < length; ++q) {
    std::vector<int64_t> row;
    for (int i = 0; i < 32; ++i) row.push_back(numbers.below(length));
    std::sort(row.begin(), row.end());
    row.erase(std::unique(row.begin(), row.end()), row.end());
    keys.insert(keys.end(), row.begin(), row.end());
    offsets.push_back(int64_t(keys.size()));
  }
  return csr(offsets, keys);
}

Pattern alternating_heads(int64_t heads) {
  std::vector<Pattern> patterns;
  for (int64_t head = 0; head < heads; ++head) {
    patterns.push_back(head % 2 == 0 ? window(64) : blocks(kTile));
  }
  return per_head(patterns);
}

SizedPattern from_text(const CatalogEntry& entry, std::string text) {
  Pattern pattern = parse(text);
  return {std::string(entry.name), std::move(text), std::move(pattern)};
}

}  // namespace

std::vector<int64_t> document_lengths(int64_t length, int64_t mean) {
  std::vector<int64_t> lengths;
  Sequence numbers{12345};
  for (int64_t left = length; left > 0; left -= lengths.back()) {
    lengths.push_back(std::min(left, 1 + numbers.below(2 * mean - 1)));
  }
  return lengths;
}

Pattern random_mask(int64_t length, uint64_t eighths) {
  std::vector<uint8_t> allowed(size_t(length * length));
  Sequence numbers{98765};
  for (uint8_t& pair : allowed) pair = (numbers.next() >> 61) < eighths;
  return mask(allowed, length, length);
}

std::optional<SizedPattern> sized_pattern(const CatalogEntry& entry, int64_t length, int64_t heads,
                                          std::string* why) {
  const std::string name(entry.name);
  const auto made = [&](std::string text, Pattern pattern) {
    return SizedPattern{name, std::move(text), std::move(pattern)};
  };
  const int64_t stride = root_stride(length);

  for (const std::string text :
       {"window(64)", "sinks(16)", "blocks(64)", "prefix(256)", "global(16)", "dilated(8, 64)",
        "random(64, 3, 1)", "streaming(16, 64)", "longformer(128, 16)", "bigbird(64, 3, 3, 2, 1)",
        "per_batch(window(64))"}) {  // for one batch entry
    if (name == text.substr(0, text.find('('))) return from_text(entry, text);
  }
  if (name == "global_at") return from_text(entry, fmt::format("global_at(0, {})", length / 2));
  if (name == "documents")
    return made("documents(~512, ...)", documents(document_lengths(length, kMeanDocument)));
  if (name == "tree") return made("tree(4 children each)", tree(tree_parents(length)));
  if (name == "strided") return from_text(entry, fmt::format("strided({})", stride));
  if (name == "fixed") {
    return from_text(entry, fmt::format("fixed({}, {})", stride, std::min<int64_t>(8, stride)));
  }
  if (name == "grid" || name == "neighborhood") {
    const int64_t height = divisor_near_root(length);
    return from_text(entry, fmt::format("{}({}, {}, 4, 4)", name, height, length / height));
  }
  if (name == "volume" || name == "volume_neighborhood") {
    const int64_t depth = std::gcd(length, int64_t{8}), height = divisor_near_root(length / depth);
    return from_text(entry, fmt::format("{}({}, {}, {}, 1, 2, 2)", name, depth, height,
                                        length / depth / height));
  }
  if (name == "tiles")
    return made("tiles(64, 64, band of 3)", tile_band(length, /*is_causal=*/false));
  if (name == "bitmaps")
    return made("bitmaps(64, 64, causal band of 3)", tile_band(length, /*is_causal=*/true));
  if (name == "csr") return made("csr(32 scattered keys)", scattered_pairs(length));
  if (name == "mask") {
    if (length <= kLongestMask)
      return made("mask(1 pair in 8)", random_mask(length, /*eighths=*/1));
    if (why) *why = "L x L bytes";
    return std::nullopt;
  }
  if (name == "per_head") return made("per_head(window(64), blocks(64))", alternating_heads(heads));
  if (name == "at") {
    std::vector<int64_t> all(static_cast<size_t>(length));
    std::iota(all.begin(), all.end(), 0);
    return made("at(0.., 0.., window(64))", at(all, all, window(64)));
  }
  if (name == "packed") {
    const std::vector<int64_t> lengths = document_lengths(length, kMeanDocument);
    return made("packed(~512, ..., causal)", packed(lengths, lengths, causal()));
  }
  // dense, causal, exponential, and patterns that are newer than this list.
  return from_text(entry, std::string(entry.example));
}

Pattern draft_tree(int64_t context) {
  std::vector<int64_t> parents;
  for (int64_t i = 0; i < context; ++i) parents.push_back(i - 1);
  constexpr std::array<int64_t, 4> kLevels = {4, 8, 8, 6};
  static_assert(kLevels[0] + kLevels[1] + kLevels[2] + kLevels[3] == kDraftNodes);
  int64_t above = context - 1, num_above = 1;  // the last token of the context is the root
  for (int64_t count : kLevels) {
    const int64_t begin = int64_t(parents.size());
    for (int64_t i = 0; i < count; ++i) parents.push_back(above + i * num_above / count);
    above = begin, num_above = count;
  }
  return tree(parents);
}

}  // namespace keyhole::bench
