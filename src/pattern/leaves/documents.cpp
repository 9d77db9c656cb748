// src/pattern/leaves/documents.cpp
// documents(n1, n2, ...): sequences packed one behind the other; a query attends to the keys of its
// own document. Positions before the first and behind the last document, which only `at` can name,
// attend to nothing, and no query attends to them.
//
//   documents(2, 3)     # # . . .
//                       # # . . .
//                       . . # # #
//                       . . # # #
//                       . . # # #
#include <algorithm>

#include "base/int_math.h"
#include "pattern/leaves/array_text.h"
#include "pattern/leaves/segments.h"
#include "pattern/node.h"

namespace keyhole {
namespace {

class Documents final : public Node {
 public:
  // Document d holds the positions bounds[d] .. bounds[d + 1]; bounds[0] is 0.
  explicit Documents(std::vector<Position> bounds) : bounds_(std::move(bounds)) {}

  bool allows(Position q, Position k) const override {
    if (!is_inside(q) || !is_inside(k)) return false;
    const size_t document = document_of(q);
    return bounds_[document] <= k && k < bounds_[document + 1];
  }

  std::string text() const override {
    std::vector<int64_t> lengths(bounds_.size() - 1);
    for (size_t d = 0; d < lengths.size(); ++d) lengths[d] = bounds_[d + 1] - bounds_[d];
    return list_text("documents", lengths, "lengths");
  }

  // Neighbouring documents touch, so a band of several sees one range; only a band that lies in one
  // document sees it alike.
  void strip(Span q, Span k, Position, Strip& out) const override {
    const Span inside = intersect(q, {0, bounds_.back()});
    if (inside.is_empty()) return;
    const size_t first = document_of(inside.begin), last = document_of(inside.end - 1);
    const bool is_one = first == last && inside == q;
    append_inside(k, bounds_[first], bounds_[last + 1], is_one ? Cover::all : Cover::some, out);
  }

  Cover cover(const Rect& rect) const override {
    const Span q = intersect(rect.q, {0, bounds_.back()}),
               k = intersect(rect.k, {0, bounds_.back()});
    if (q.is_empty() || k.is_empty()) return Cover::none;
    const size_t first = document_of(q.begin);
    const bool is_one = bounds_[first + 1] >= q.end;
    const Span keys = {bounds_[first], bounds_[is_one ? first + 1 : document_of(q.end - 1) + 1]};
    if (intersect(k, keys).is_empty()) return Cover::none;
    const bool is_all = is_one && q == rect.q && intersect(rect.k, keys) == rect.k;
    return is_all ? Cover::all : Cover::some;
  }

  // The rectangles of pairs inside rect, relative to its corner.
  bool sign(const Rect& rect, Signature& signature) const override {
    for_each_block(rect, [&](Span rows, Span columns) {
      signature.add(rows.begin), signature.add(rows.end);
      signature.add(columns.begin), signature.add(columns.end);
    });
    signature.add(-1);  // ends the list, so that what follows cannot be mistaken for a part of it
    return true;
  }

  void draw(const Rect& rect, BitRows& bits) const override {
    for_each_block(rect, [&](Span rows, Span columns) {
      for (Position row = rows.begin; row < rows.end; ++row) {
        set_bits(bits.row(int32_t(row)), columns.begin, columns.end);
      }
    });
  }

  std::optional<KnownSizes> sizes() const override {
    return KnownSizes{.made_by = "documents",
                      .way_out = "give lengths that add up to the keys; padding is a document, too",
                      .most_q = bounds_.back(),
                      .least_k = bounds_.back(),
                      .most_k = bounds_.back()};
  }

  NodePtr in_residue(int64_t stride, int64_t residue) const override {
    if (residue < 0 || residue >= stride) return Node::in_residue(stride, residue);
    std::vector<Position> bounds = bounds_;
    for (Position& bound : bounds) bound = ceil_div(bound - residue, stride);
    return std::make_shared<Documents>(std::move(bounds));
  }

 private:
  bool is_inside(Position p) const { return 0 <= p && p < bounds_.back(); }

  // The document that holds position p, which must be inside; empty documents hold none.
  size_t document_of(Position p) const {
    return size_t(std::upper_bound(bounds_.begin() + 1, bounds_.end(), p) - bounds_.begin()) - 1;
  }

  // Calls visit(rows, columns), counted from rect's corner, for each document with pairs in rect.
  template <class Visit>
  void for_each_block(const Rect& rect, Visit visit) const {
    const Span inside = intersect(rect.q, {0, bounds_.back()});
    if (inside.is_empty()) return;
    for (size_t d = document_of(inside.begin); d + 1 < bounds_.size(); ++d) {
      if (bounds_[d] >= inside.end || bounds_[d] >= rect.k.end) break;
      const Span document = {bounds_[d], bounds_[d + 1]};
      const Span q = intersect(inside, document), k = intersect(rect.k, document);
      if (q.is_empty() || k.is_empty()) continue;
      visit(Span{q.begin - rect.q.begin, q.end - rect.q.begin},
            Span{k.begin - rect.k.begin, k.end - rect.k.begin});
    }
  }

  std::vector<Position> bounds_;
};

}  // namespace

Pattern documents(std::vector<int64_t> lengths) {
  KEYHOLE_CHECK(!lengths.empty(), "documents: no lengths given; expected at least one");
  std::vector<Position> bounds(lengths.size() + 1);
  for (size_t d = 0; d < lengths.size(); ++d) {
    KEYHOLE_CHECK(lengths[d] >= 0, "documents: length ", d, " is ", lengths[d],
                  "; lengths must be 0 or more");
    bounds[d + 1] = checked_add(bounds[d], lengths[d], "documents: the sum of the lengths");
    KEYHOLE_CHECK(bounds[d + 1] <= kUnbounded, "documents: the lengths add up to more than ",
                  kUnbounded);
  }
  return Pattern(std::make_shared<Documents>(std::move(bounds)));
}

}  // namespace keyhole
