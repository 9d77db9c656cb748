// src/pattern/leaves/mask.cpp
// mask(bytes, q_len, k_len): a dense boolean mask, one byte a pair; non-zero attends. Kept as bits,
// an eighth of the bytes. Queries and keys outside the array do not attend.
//
//   mask({1, 0, 0,  0, 1, 1}, 2, 3)     # . .
//                                       . # #
#include <bit>

#include "base/hash.h"
#include "base/int_math.h"
#include "pattern/leaves/bit_runs.h"
#include "pattern/leaves/segments.h"
#include "pattern/node.h"

namespace keyhole {
namespace {

// Bit i of the result: is byte i of the eight non-zero?
uint64_t pack_eight(const uint8_t* bytes) {
  uint64_t x = 0;
  for (int i = 0; i < 8; ++i) x |= uint64_t{bytes[i]} << 8 * i;
  constexpr uint64_t kLow = 0x7f7f7f7f7f7f7f7fu;
  const uint64_t is_set = ((((x & kLow) + kLow) | x) & ~kLow) >> 7;  // 1 in every non-zero byte
  return (is_set * 0x0102040810204080u) >> 56;                       // gathered in the top byte
}

class Mask final : public Node {
 public:
  Mask(std::span<const uint8_t> allowed, int64_t q_len, int64_t k_len)
      : q_len_(q_len), k_len_(k_len), words_(ceil_div(k_len, 64)), bits_(size_t(q_len * words_)) {
    for (int64_t q = 0; q < q_len; ++q) {
      const uint8_t* bytes = allowed.data() + q * k_len;
      uint64_t* row = bits_.data() + q * words_;
      int64_t k = 0;
      for (; k + 64 <= k_len; k += 64) {
        uint64_t word = 0;
        for (int i = 0; i < 8; ++i) word |= pack_eight(bytes + k + 8 * i) << 8 * i;
        row[k >> 6] = word;
      }
      for (; k < k_len; ++k) row[k >> 6] |= uint64_t{bytes[k] != 0} << (k & 63);
    }
  }

  bool allows(Position q, Position k) const override {
    if (q < 0 || q >= q_len_ || k < 0 || k >= k_len_) return false;
    return get_bit(row(q), k);
  }

  std::string text() const override {
    int64_t pairs = 0;
    Fnv1a64 hash;
    for (const uint64_t word : bits_) pairs += std::popcount(word), hash.add(word);
    return say("mask(<", q_len_, "x", k_len_, ", ", pairs, " pairs #", to_hex(hash.value()), ">)");
  }

  // The rows of the band, 64 pairs at a time: what all of them have, and what any of them has.
  void strip(Span q, Span k, Position grain, Strip& out) const override {
    const Span rows = intersect(q, {0, q_len_}), keys = intersect(k, {0, k_len_});
    if (rows.is_empty() || keys.is_empty()) return;
    const int64_t first = keys.begin >> 6, words = ((keys.end - 1) >> 6) + 1 - first;
    std::vector<uint64_t> any(size_t(words), 0), every(size_t(words), rows == q ? ~uint64_t{0} : 0);
    for (Position r = rows.begin; r < rows.end; ++r) {
      const uint64_t* from = row(r) + first;
      for (int64_t w = 0; w < words; ++w) any[size_t(w)] |= from[w], every[size_t(w)] &= from[w];
    }
    Strip exact;
    for (int64_t w = 0; w < words; ++w) {
      const uint64_t ones = ones_inside(keys, first + w);
      append_runs(any[size_t(w)] & ones, every[size_t(w)] & ones, (first + w) * 64, exact);
    }
    append_blurred(exact, grain, out);
  }

  void draw(const Rect& rect, BitRows& bits) const override {
    const Span rows = intersect(rect.q, {0, q_len_});
    for (Position q = rows.begin; q < rows.end; ++q) {
      uint64_t* to = bits.row(int32_t(q - rect.q.begin));
      for (int32_t w = 0; w < bits.words(); ++w) {
        to[w] =
            bits_from(row(q), words_, rect.k.begin + w * 64) & ones_inside({0, rect.k.size()}, w);
      }
    }
  }

  std::optional<KnownSizes> sizes() const override {
    return KnownSizes{.made_by = "mask",
                      .way_out =
                          "give a row for each position and a column for each key; where row 0 is "
                          "query 0, use from_dense, or a plan with offset 0",
                      .most_q = q_len_,
                      .least_k = k_len_,
                      .most_k = k_len_};
  }

 private:
  const uint64_t* row(Position q) const { return bits_.data() + q * words_; }

  int64_t q_len_, k_len_, words_;
  std::vector<uint64_t> bits_;  // [q_len][words]
};

}  // namespace

Pattern mask(std::span<const uint8_t> allowed, int64_t q_len, int64_t k_len) {
  KEYHOLE_CHECK(q_len >= 0 && k_len >= 0, "mask: the shape is ", q_len, " x ", k_len,
                "; lengths must be 0 or more");
  const int64_t pairs = checked_mul(q_len, k_len, "mask: q_len x k_len");
  KEYHOLE_CHECK(int64_t(allowed.size()) == pairs, "mask: ", q_len, " x ", k_len, " pairs need ",
                pairs, " bytes but got ", allowed.size());
  return Pattern(std::make_shared<Mask>(allowed, q_len, k_len));
}

}  // namespace keyhole
