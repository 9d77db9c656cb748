// tests/support/case.h
// One test case: everything a kernel call depends on, as one line of text. A case is drawn from one
// 64-bit seed or read back from its line; either way the same case has the same inputs, bit for
// bit.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/weight_rule.h"
#include "judge/layout.h"
#include "keyhole/normalizer.h"
#include "keyhole/tensor.h"
#include "plan/split_parts.h"
#include "support/expression.h"

namespace keyhole::test {

using judge::Layout, judge::kNumLayouts;

// What the numbers are like.
enum class Regime : uint8_t {
  normal,
  integers,  // small integers: sums are exact
  count,     // q = 0: lse is the logarithm of the number of keys
  ones,      // v = 1: every row that sees a key gives 1
  spike,     // one key at a mask edge carries nearly all the weight
  deep,      // scores about -120: exp underflows unless a maximum is subtracted
  huge,      // scores up to +-6e4
  ties,      // few distinct values
  zeros,
  subnormal,     // v and dout below the smallest normal number
  masked_nan,    // NaN and infinity wherever nobody looks
  attended_nan,  // one NaN that somebody does look at: it must show, and only there
};

enum class Tensor : uint8_t { q, k, v, out, lse, dout, dq, dk, dv };
inline constexpr int kNumTensors = 9;

struct Case {
  Expression pattern{"dense", {}, {}};
  int64_t batch = 1, heads = 1, kv_heads = 1, q_len = 1, k_len = 1, head_dim = 8, v_head_dim = 8;
  DType dtype = DType::f32;
  Normalizer normalizer;
  std::optional<double> scale;
  double softcap = 0;
  bool has_sink = false;
  std::optional<int64_t> offset;
  std::array<Layout, kNumTensors> layouts{};
  Regime regime = Regime::normal;
  int threads = 1;
  int tile = 0;   // which of a kernel's tile shapes, modulo their number; -1: the library's choice
  int forms = 0;  // a SplitPolicy: how a plan chooses between tiles, residue classes and key lists
  uint64_t data = 0;  // seed of the numbers

  SplitPolicy policy() const { return SplitPolicy(forms); }
  Shape shape() const { return {batch, heads, q_len, k_len, offset}; }
  // What q . k is multiplied with: `scale`, or what the library takes without one.
  double score_scale() const { return scale.value_or(1 / std::sqrt(double(head_dim))); }
  WeightRule rule() const { return {normalizer, score_scale(), softcap}; }
  Layout layout(Tensor tensor) const { return layouts[size_t(tensor)]; }
  bool operator==(const Case&) const = default;
};

const char* to_string(Layout layout);
const char* to_string(Regime regime);
const char* to_string(Tensor tensor);
inline constexpr int kNumRegimes = 12;

std::string to_text(const Case& c);      // key=value, blanks between; only what differs from Case{}
Case parse_case(std::string_view text);  // throws Error(usage)

}  // namespace keyhole::test
