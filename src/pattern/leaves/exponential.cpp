// src/pattern/leaves/exponential.cpp
// exponential: a query attends to itself and to the keys whose distance is a power of two: 1, 2, 4,
// 8, ... About 2 log2(L) keys a query, and any token reaches any other in log2(L) steps.
//
//   exponential on 6 tokens     # # # . # .
//                               # # # # . #
//                               # # # # # .
//                               . # # # # #
//                               # . # # # #
//                               . # . # # #
#include <bit>

#include "pattern/leaves/segments.h"
#include "pattern/node.h"

namespace keyhole {
namespace {

// Calls visit(d) for every diagonal d = k - q that attends and lies in [lowest, highest],
// ascending.
template <class Visit>
void for_each_diagonal(Position lowest, Position highest, Visit visit) {
  constexpr int kTop = 62;  // 2^62: farther apart than any two positions
  for (int i = kTop; i >= 0; --i) {
    const Position d = -(Position{1} << i);
    if (lowest <= d && d <= highest) visit(d);
  }
  if (lowest <= 0 && 0 <= highest) visit(Position{0});
  for (int i = 0; i <= kTop; ++i) {
    const Position d = Position{1} << i;
    if (lowest <= d && d <= highest) visit(d);
  }
}

class Exponential final : public Node {
 public:
  bool allows(Position q, Position k) const override {
    const uint64_t distance = q > k ? uint64_t(q) - uint64_t(k) : uint64_t(k) - uint64_t(q);
    return distance == 0 || std::has_single_bit(distance);
  }

  std::string text() const override { return "exponential"; }

  // Each diagonal is a slanted line through the band: as wide as the band has queries.
  void strip(Span q, Span k, Position grain, Strip& out) const override {
    if (q.is_empty() || k.is_empty()) return;
    const auto [lowest, highest] = Rect{q, k}.diagonals();
    Strip exact;
    Position end = k.begin;  // of the line before: lines overlap near the main diagonal
    for_each_diagonal(lowest, highest, [&](Position d) {
      append_inside(k, std::max(q.begin + d, end), q.end + d,
                    q.size() == 1 ? Cover::all : Cover::some, exact);
      end = q.end + d;
    });
    append_blurred(exact, grain, out);
  }

  Cover cover(const Rect& rect) const override {
    if (rect.q.is_empty() || rect.k.is_empty()) return Cover::none;
    const auto [lowest, highest] = rect.diagonals();
    if (-2 <= lowest && highest <= 2) return Cover::all;  // 0, 1 and 2 all attend
    Cover answer = Cover::none;
    for_each_diagonal(lowest, highest, [&](Position) { answer = Cover::some; });
    return answer;
  }

  bool sign(const Rect& rect, Signature& signature) const override {
    const auto [lowest, highest] = rect.diagonals();
    for_each_diagonal(lowest, highest, [&](Position d) { signature.add(d - lowest); });
    signature.add(-1);  // ends the list
    return true;
  }

  void draw(const Rect& rect, BitRows& bits) const override {
    const auto [lowest, highest] = rect.diagonals();
    for_each_diagonal(lowest, highest, [&](Position d) {
      const Span q = intersect(rect.q, {rect.k.begin - d, rect.k.end - d});
      for (Position p = q.begin; p < q.end; ++p) {
        const Position column = p + d - rect.k.begin;
        set_bits(bits.row(int32_t(p - rect.q.begin)), column, column + 1);
      }
    });
  }

  // stride * d' is a power of two only when stride is one too, and then d' is any power of two.
  NodePtr in_residue(int64_t stride, int64_t) const override {
    return std::has_single_bit(uint64_t(stride)) ? shared_from_this() : window(0).node();
  }
};

}  // namespace

Pattern exponential() { return Pattern(std::make_shared<Exponential>()); }

}  // namespace keyhole
