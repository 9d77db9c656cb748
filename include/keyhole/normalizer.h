// include/keyhole/normalizer.h
// Normalizer: how the scores of a row become its weights.
//
//   softmax              every key has a weight
//   softmax(top=32)      softmax over the 32 keys with the largest scores
//   entmax(1.5)          alpha-entmax: most weights are exactly 0; 1 is softmax, 2 is sparsemax
//   entmax(1.5, top=8)   alpha-entmax over the 8 keys with the largest scores
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace keyhole {

struct Normalizer {
  double alpha = 1;   // 1: softmax; up to 2: sparsemax
  int64_t top_k = 0;  // 0: all keys take part; else those with the top_k largest scores. Among
                      // equal scores the key with the smaller index comes first.

  constexpr bool is_plain_softmax() const { return alpha == 1 && top_k == 0; }
  bool operator==(const Normalizer&) const = default;
};

// They throw Error(usage) for an alpha outside 1 to 2 and for a negative `top`; 0: all keys.
Normalizer softmax(int64_t top = 0);
Normalizer entmax(double alpha, int64_t top = 0);

// The support of a row, the keys that have weight, as forward writes it for backward: this many
// entries, ascending keys, then -1. A row without a list has kLongSupport as its first entry: it
// has more keys, or many of its neighbours have. Backward then finds its keys again.
inline constexpr int64_t kSupportKeys = 64;
inline constexpr int32_t kLongSupport = -2;

std::string to_string(const Normalizer& normalizer);  // as above
Normalizer parse_normalizer(std::string_view text);   // the inverse; throws Error(usage)
void check_normalizer(const Normalizer& normalizer);  // for one that was filled in by hand

}  // namespace keyhole
