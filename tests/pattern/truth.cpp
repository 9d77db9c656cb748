// tests/pattern/truth.cpp
// Counting by definition, and the laws that compare a node's quick answers with it.
#include "pattern/truth.h"

#include "base/check.h"

namespace keyhole::test {

Truth::Truth(NodePtr node, Span q, Span k)
    : node_(std::move(node)),
      q_(q),
      k_(k),
      allowed_(size_t(q.size() * k.size())),
      sums_(size_t((q.size() + 1) * (k.size() + 1))) {
  for (Position i = q.begin; i < q.end; ++i) {
    for (Position j = k.begin; j < k.end; ++j) {
      const bool allowed = node_->allows(i, j);
      allowed_[index(i, j)] = allowed;
      sums_[size_t((i + 1 - q.begin) * (k.size() + 1) + (j + 1 - k.begin))] =
          allowed + sum_before(i, j + 1) + sum_before(i + 1, j) - sum_before(i, j);
    }
  }
}

int64_t Truth::count(const Rect& rect) const {
  return sum_before(rect.q.end, rect.k.end) - sum_before(rect.q.begin, rect.k.end) -
         sum_before(rect.q.end, rect.k.begin) + sum_before(rect.q.begin, rect.k.begin);
}

Cover Truth::cover(const Rect& rect) const {
  const int64_t pairs = count(rect);
  if (pairs == 0) return Cover::none;
  return pairs == rect.q.size() * rect.k.size() ? Cover::all : Cover::some;
}

std::string Truth::bitmap(const Rect& rect) const {
  std::string pairs;
  for (Position i = rect.q.begin; i < rect.q.end; ++i) {
    pairs.append(allowed_.begin() + int64_t(index(i, rect.k.begin)),
                 allowed_.begin() + int64_t(index(i, rect.k.begin)) + rect.k.size());
  }
  return pairs;
}

std::string to_text(const Rect& rect) {
  return say("q[", rect.q.begin, ",", rect.q.end, ") k[", rect.k.begin, ",", rect.k.end, ")");
}

std::string wrong_cover(const Truth& truth, const Rect& rect) {
  const Cover claimed = truth.node().cover(rect), counted = truth.cover(rect);
  if (claimed == Cover::some || claimed == counted) return {};
  return say(truth.node().text(), " on ", to_text(rect), " claims ", to_string(claimed),
             ", counting says ", to_string(counted));
}

std::string wrong_strip(const Truth& truth, const Rect& rect, Position grain) {
  Strip strip;
  truth.node().strip(rect.q, rect.k, grain, strip);
  const auto wrong = [&](const auto&... what) {
    return say(truth.node().text(), " on ", to_text(rect), " with grain ", grain, ": ", what...);
  };
  Position end = rect.k.begin;  // of what the strip has spoken about
  Cover last = Cover::none;
  const auto check = [&](Position to, Cover claimed) -> std::string {
    if (to == end) return {};
    const Cover counted = truth.cover({rect.q, {end, to}});
    if (claimed == Cover::some || claimed == counted) return {};
    return wrong("keys [", end, ",", to, ") are said to be ", to_string(claimed),
                 ", counting says ", to_string(counted));
  };
  for (const Segment& segment : strip) {
    const Position begin = segment.begin;
    if (begin >= segment.end || begin < end || segment.end > rect.k.end) {
      return wrong("segment [", begin, ",", segment.end, ") is empty, out of order or not clipped");
    }
    if (begin == end && segment.cover == last) return wrong("two equal neighbours meet at ", begin);
    if (std::string gap = check(begin, Cover::none); !gap.empty()) return gap;
    end = begin;
    if (std::string text = check(segment.end, segment.cover); !text.empty()) return text;
    if (grain == 1 && rect.q.size() == 1 && segment.cover == Cover::some &&
        !truth.node().is_opaque()) {
      return wrong("one query does not know whether it sees [", begin, ",", segment.end, ")");
    }
    end = segment.end;
    last = segment.cover;
  }
  return check(rect.k.end, Cover::none);
}

std::string wrong_drawing(const Truth& truth, const Rect& rect) {
  BitRows bits(int32_t(rect.q.size()), int32_t(rect.k.size()));
  truth.node().draw(rect, bits);
  for (Position q = rect.q.begin; q < rect.q.end; ++q) {
    for (Position k = rect.k.begin; k < rect.k.end; ++k) {
      if (get_bit(bits.row(int32_t(q - rect.q.begin)), k - rect.k.begin) != truth.allows(q, k)) {
        return say(truth.node().text(), " on ", to_text(rect), " draws the pair (", q, ", ", k,
                   ") wrong; it should be ", truth.allows(q, k) ? "set" : "clear");
      }
    }
  }
  if (bits.count() == truth.count(rect)) return {};
  return say(truth.node().text(), " on ", to_text(rect), " draws behind the end of a row");
}

std::string SignatureBook::wrong_signature(const Truth& truth, const Rect& rect) {
  if (truth.node().cover(rect) != Cover::some) return {};
  Signature signature;
  if (!truth.node().sign(rect, signature)) return {};
  ++num_signed_;
  const std::string name = say(rect.q.size(), "x", rect.k.size(), ":") + signature.bytes();
  const auto [seen, is_new] = bitmaps_.try_emplace(name, truth.bitmap(rect));
  if (is_new || seen->second == truth.bitmap(rect)) return {};
  return say(truth.node().text(), " on ", to_text(rect),
             " has the signature of another rectangle of its size that looks different");
}

}  // namespace keyhole::test
