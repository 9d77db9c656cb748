// tests/support/case.cpp
// A case as one line of text, and back.
#include "support/case.h"

#include <cstdio>
#include <sstream>

#include "base/check.h"

namespace keyhole::test {
namespace {

constexpr const char* kLayoutNames[kNumLayouts] = {"contiguous",     "bshd",       "padded",
                                                   "sliced",         "odd_offset", "expanded_heads",
                                                   "expanded_batch", "odd_strides"};
constexpr const char* kRegimeNames[kNumRegimes] = {
    "normal", "integers", "count", "ones",      "spike",      "deep",
    "huge",   "ties",     "zeros", "subnormal", "masked_nan", "attended_nan"};
constexpr const char* kTensorNames[kNumTensors] = {"q",    "k",  "v",  "out", "lse",
                                                   "dout", "dq", "dk", "dv"};

template <class Enum, size_t N>
Enum find(const char* const (&names)[N], const std::string& name) {
  for (size_t i = 0; i < N; ++i) {
    if (name == names[i]) return Enum(i);
  }
  throw Error(ErrorKind::usage, say("case: unknown value '", name, "'"));
}

DType parse_dtype(const std::string& name) {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
    if (name == to_string(dtype)) return dtype;
  }
  throw Error(ErrorKind::usage, say("case: unknown dtype '", name, "'"));
}

std::string exact(double value) {  // enough digits to come back the same
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

// Every number of a case with its key, so that writing and reading cannot disagree.
template <class AnyCase, class Visit>
void for_each_number(AnyCase& c, const Visit& visit) {
  visit("batch", c.batch);
  visit("heads", c.heads);
  visit("kv_heads", c.kv_heads);
  visit("q_len", c.q_len);
  visit("k_len", c.k_len);
  visit("head_dim", c.head_dim);
  visit("v_head_dim", c.v_head_dim);
  visit("threads", c.threads);
  visit("tile", c.tile);
  visit("forms", c.forms);
  visit("data", c.data);
  visit("sink", c.has_sink);
}

}  // namespace

const char* to_string(Layout layout) { return kLayoutNames[size_t(layout)]; }
const char* to_string(Regime regime) { return kRegimeNames[size_t(regime)]; }
const char* to_string(Tensor tensor) { return kTensorNames[size_t(tensor)]; }

std::string to_text(const Case& c) {
  std::ostringstream text;
  text << "pattern=" << to_text(c.pattern) << " dtype=" << to_string(c.dtype);
  for_each_number(c,
                  [&](const char* key, const auto& value) { text << ' ' << key << '=' << value; });
  if (c.normalizer.alpha != 1) text << " alpha=" << exact(c.normalizer.alpha);
  if (c.normalizer.top_k != 0) text << " top_k=" << c.normalizer.top_k;
  if (c.scale) text << " scale=" << exact(*c.scale);
  if (c.softcap != 0) text << " softcap=" << exact(c.softcap);
  if (c.offset) text << " offset=" << *c.offset;
  text << " regime=" << to_string(c.regime);
  for (int i = 0; i < kNumTensors; ++i) {
    if (c.layouts[size_t(i)] == Layout::contiguous) continue;
    text << ' ' << kTensorNames[i] << '=' << to_string(c.layouts[size_t(i)]);
  }
  return text.str();
}

Case parse_case(std::string_view line) {
  Case c;
  std::istringstream words{std::string(line)};
  std::string word;
  while (words >> word) {
    const size_t equals = word.find('=');
    KEYHOLE_CHECK(equals != std::string::npos, "case: expected key=value, got '", word, "'");
    const std::string key = word.substr(0, equals), value = word.substr(equals + 1);
    bool is_known = true;
    if (key == "pattern")
      c.pattern = parse_expression(value);
    else if (key == "dtype")
      c.dtype = parse_dtype(value);
    else if (key == "alpha")
      c.normalizer.alpha = std::stod(value);
    else if (key == "top_k")
      c.normalizer.top_k = std::stoll(value);
    else if (key == "scale")
      c.scale = std::stod(value);
    else if (key == "softcap")
      c.softcap = std::stod(value);
    else if (key == "offset")
      c.offset = std::stoll(value);
    else if (key == "regime")
      c.regime = find<Regime>(kRegimeNames, value);
    else
      is_known = false;
    for_each_number(c, [&](const char* name, auto& number) {
      if (key != name) return;
      std::istringstream(value) >> number;
      is_known = true;
    });
    for (int i = 0; i < kNumTensors; ++i) {
      if (key != kTensorNames[i]) continue;
      c.layouts[size_t(i)] = find<Layout>(kLayoutNames, value);
      is_known = true;
    }
    KEYHOLE_CHECK(is_known, "case: unknown key '", key, "'");
  }
  return c;
}

}  // namespace keyhole::test
