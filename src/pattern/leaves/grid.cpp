// src/pattern/leaves/grid.cpp
// grid(height, width, row_radius, column_radius): positions are the pixels of an image, row by row;
// a query attends to the pixels near it in both directions. Positions outside the image take no
// part.
//
//   grid(2, 3, 1, 1): what pixel 1 of     0 1 2     # # # # # #
//                                         3 4 5     sees, and pixel 3:  # # . # # .
#include <algorithm>
#include <cstdlib>

#include "base/int_math.h"
#include "pattern/leaves/segments.h"
#include "pattern/node.h"

namespace keyhole {
namespace {

class Grid final : public Node {
 public:
  Grid(int64_t height, int64_t width, int64_t row_radius, int64_t column_radius)
      : height_(height),
        width_(width),
        row_radius_(row_radius),
        column_radius_(column_radius),
        row_reach_(std::min(row_radius, height)),
        column_reach_(std::min(column_radius, width)) {}

  bool allows(Position q, Position k) const override {
    const Position pixels = height_ * width_;
    if (q < 0 || q >= pixels || k < 0 || k >= pixels) return false;
    return std::abs(q / width_ - k / width_) <= row_reach_ &&
           std::abs(q % width_ - k % width_) <= column_reach_;
  }

  std::string text() const override {
    return say("grid(", height_, ", ", width_, ", ", row_radius_, ", ", column_radius_, ")");
  }

  void strip(Span q, Span k, Position grain, Strip& out) const override {
    const Span inside = intersect(q, {0, height_ * width_});
    if (inside.is_empty() || k.is_empty()) return;
    const Position top = inside.begin / width_, bottom = (inside.end - 1) / width_;
    if (column_reach_ >= width_ - 1 || (grain > 1 && width_ < 2 * grain)) {
      const bool may_be_all = column_reach_ >= width_ - 1 && inside == q;
      return strip_of_rows(top, bottom, may_be_all, k, out);
    }
    Strip exact;
    for (Position y = top; y <= bottom; ++y) {
      const Span row = intersect(inside, {y * width_, y * width_ + width_});
      Strip piece;
      strip_of_piece(row, k, piece);
      exact = y == top ? piece : joined(exact, piece);
    }
    if (inside != q) exact = joined(exact, Strip());  // queries outside the image see nothing
    append_blurred(exact, grain, out);
  }

  // The pattern is the same everywhere but at the ends of the image: where the corner stands in its
  // row of pixels, how many rows apart, and what of rect is image.
  bool sign(const Rect& rect, Signature& signature) const override {
    const Span image = {0, height_ * width_};
    const Span q = intersect(rect.q, image), k = intersect(rect.k, image);
    if (q.is_empty() || k.is_empty()) return false;
    for (const Position value : {q.begin - rect.q.begin, q.end - rect.q.begin,
                                 k.begin - rect.k.begin, k.end - rect.k.begin, q.begin % width_,
                                 k.begin % width_, k.begin / width_ - q.begin / width_}) {
      signature.add(value);
    }
    return true;
  }

  void draw(const Rect& rect, BitRows& bits) const override {
    const Span q = intersect(rect.q, {0, height_ * width_});
    for (Position p = q.begin; p < q.end; ++p) {
      Strip seen;
      strip_of_piece({p, p + 1}, rect.k, seen);
      for (const Segment& part : seen) {
        set_bits(bits.row(int32_t(p - rect.q.begin)), part.begin - rect.k.begin,
                 part.end - rect.k.begin);
      }
    }
  }

  std::optional<KnownSizes> sizes() const override {
    const int64_t pixels = height_ * width_;
    return KnownSizes{.made_by = "grid",
                      .way_out =
                          "give a height and a width of as many pixels as there are keys; tokens "
                          "that are no pixels get positions below 0 from at(...)",
                      .most_q = pixels,
                      .least_k = pixels,
                      .most_k = pixels};
  }

  NodePtr in_residue(int64_t stride, int64_t residue) const override {
    if (width_ % stride != 0 || residue < 0 || residue >= stride) {
      return Node::in_residue(stride, residue);
    }
    return std::make_shared<Grid>(height_, width_ / stride, row_radius_, column_radius_ / stride);
  }

 private:
  // Neighbouring queries of one row of pixels: the same rows of the image for all of them, and in
  // each the columns that every one, or only some, can see.
  void strip_of_piece(Span q, Span k, Strip& out) const {
    const Position y = q.begin / width_, left = q.begin % width_, right = (q.end - 1) % width_;
    const Position top = std::max({Position{0}, y - row_reach_, floor_div(k.begin, width_)});
    const Position bottom = std::min({height_ - 1, y + row_reach_, floor_div(k.end - 1, width_)});
    const Span any = {std::max(Position{0}, left - column_reach_),
                      std::min(width_, right + column_reach_ + 1)};
    const Span every = {std::max(Position{0}, right - column_reach_),
                        std::min(width_, left + column_reach_ + 1)};
    for (Position row = top; row <= bottom; ++row) {
      const Position begin = row * width_;
      if (every.is_empty()) {
        append_inside(k, begin + any.begin, begin + any.end, Cover::some, out);
        continue;
      }
      append_inside(k, begin + any.begin, begin + every.begin, Cover::some, out);
      append_inside(k, begin + every.begin, begin + every.end, Cover::all, out);
      append_inside(k, begin + every.end, begin + any.end, Cover::some, out);
    }
  }

  // Whole rows of pixels, when columns are not looked at: queries of the rows top ... bottom.
  void strip_of_rows(Position top, Position bottom, bool may_be_all, Span k, Strip& out) const {
    const Position any_begin = std::max(Position{0}, top - row_reach_) * width_;
    const Position any_end = std::min(height_, bottom + row_reach_ + 1) * width_;
    Position all_begin = std::max(Position{0}, bottom - row_reach_) * width_;
    Position all_end = std::min(height_, top + row_reach_ + 1) * width_;
    if (!may_be_all || all_begin >= all_end) all_begin = all_end = any_end;
    append_inside(k, any_begin, all_begin, Cover::some, out);
    append_inside(k, all_begin, all_end, Cover::all, out);
    append_inside(k, all_end, any_end, Cover::some, out);
  }

  int64_t height_, width_, row_radius_, column_radius_;
  int64_t row_reach_, column_reach_;  // the radii, no larger than the image
};

}  // namespace

Pattern grid(int64_t height, int64_t width, int64_t row_radius, int64_t column_radius) {
  KEYHOLE_CHECK(height >= 1 && width >= 1, "grid: the image is ", height, " x ", width,
                "; height and width must be 1 or more");
  KEYHOLE_CHECK(row_radius >= 0 && column_radius >= 0, "grid: the radii are ", row_radius, " and ",
                column_radius, "; they must be 0 or more");
  KEYHOLE_CHECK(height <= kUnbounded / width, "grid: an image of ", height, " x ", width,
                " has more than ", kUnbounded, " pixels");
  return Pattern(std::make_shared<Grid>(height, width, row_radius, column_radius));
}

}  // namespace keyhole
