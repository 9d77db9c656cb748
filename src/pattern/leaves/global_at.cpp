// src/pattern/leaves/global_at.cpp
// global_at(p, ...): the tokens at these positions attend to all keys, and all queries attend to
// them.
//
//   global_at(1, 3) on 5 tokens     . # . # .
//                                   # # # # #
//                                   . # . # .
//                                   # # # # #
//                                   . # . # .
#include <algorithm>

#include "base/int_math.h"
#include "pattern/leaves/array_text.h"
#include "pattern/leaves/segments.h"
#include "pattern/node.h"

namespace keyhole {
namespace {

class GlobalAt final : public Node {
 public:
  explicit GlobalAt(std::vector<Position> positions) : as_given_(std::move(positions)) {
    sorted_ = as_given_;
    std::sort(sorted_.begin(), sorted_.end());
    sorted_.erase(std::unique(sorted_.begin(), sorted_.end()), sorted_.end());
  }

  bool allows(Position q, Position k) const override { return is_global(q) || is_global(k); }

  std::string text() const override { return list_text("global_at", as_given_, "positions"); }

  void strip(Span q, Span k, Position grain, Strip& out) const override {
    if (q.is_empty() || k.is_empty()) return;
    const std::span<const Position> rows = inside(q), keys = inside(k);
    if (Position(rows.size()) == q.size()) return out.append(k.begin, k.end, Cover::all);
    const Cover others = rows.empty() ? Cover::none : Cover::some;
    if (Position(keys.size()) / 4 > k.size() / grain) {  // too many to be told apart
      const Span range = others == Cover::some ? k : Span{keys.front(), keys.back() + 1};
      return out.append(range.begin, range.end, Cover::some);
    }
    Strip exact;
    Position end = k.begin;
    for (const Position key : keys) {
      exact.append(end, key, others);
      exact.append(key, key + 1, Cover::all);
      end = key + 1;
    }
    exact.append(end, k.end, others);
    append_blurred(exact, grain, out);
  }

  Cover cover(const Rect& rect) const override {
    const size_t rows = inside(rect.q).size(), keys = inside(rect.k).size();
    if (rows == 0 && keys == 0) return Cover::none;
    const bool is_all = Position(rows) == rect.q.size() || Position(keys) == rect.k.size();
    return is_all ? Cover::all : Cover::some;
  }

  bool sign(const Rect& rect, Signature& signature) const override {
    for (const Span span : {rect.q, rect.k}) {
      for (const Position p : inside(span)) signature.add(p - span.begin);
      signature.add(-1);  // ends the list
    }
    return true;
  }

  void draw(const Rect& rect, BitRows& bits) const override {
    const std::span<const Position> keys = inside(rect.k);
    for (Position q = rect.q.begin; q < rect.q.end; ++q) {
      uint64_t* row = bits.row(int32_t(q - rect.q.begin));
      for (const Position key : keys) set_bits(row, key - rect.k.begin, key - rect.k.begin + 1);
    }
    for (const Position q : inside(rect.q)) {
      set_bits(bits.row(int32_t(q - rect.q.begin)), 0, rect.k.size());
    }
  }

  NodePtr in_residue(int64_t stride, int64_t residue) const override {
    std::vector<Position> positions;
    for (const Position p : sorted_) {
      if (floor_mod(p - residue, stride) == 0) positions.push_back((p - residue) / stride);
    }
    if (positions.empty()) return make_nothing();
    return std::make_shared<GlobalAt>(std::move(positions));
  }

 private:
  bool is_global(Position p) const { return std::binary_search(sorted_.begin(), sorted_.end(), p); }

  std::span<const Position> inside(Span span) const {
    const auto begin = std::lower_bound(sorted_.begin(), sorted_.end(), span.begin);
    return {begin, std::lower_bound(begin, sorted_.end(), span.end)};
  }

  std::vector<Position> as_given_, sorted_;
};

}  // namespace

Pattern global_at(std::vector<int64_t> positions) {
  KEYHOLE_CHECK(!positions.empty(), "global_at: no positions given; expected at least one");
  for (size_t i = 0; i < positions.size(); ++i) {
    KEYHOLE_CHECK(positions[i] >= -kUnbounded && positions[i] <= kUnbounded, "global_at: position ",
                  i, " is ", positions[i], "; expected -", kUnbounded, " to ", kUnbounded);
  }
  return Pattern(std::make_shared<GlobalAt>(std::move(positions)));
}

}  // namespace keyhole
