// src/pattern/leaves/lattice.cpp
// Along one axis, the window of a query begins and ends no earlier than that of the query before
// it. So a piece of neighbouring queries that differ along one axis only sees, in every row of
// points, one range that some of them see, and inside it one that all of them see:
//
//   queries x = 2 .. 4, radius 2     x   0 1 2 3 4 5 6 7
//                                        + + # # # + + .      # all of them, + some
#include "pattern/leaves/lattice.h"

#include <algorithm>

#include "base/int_math.h"
#include "pattern/leaves/segments.h"
#include "pattern/node.h"

namespace keyhole {
namespace {

// What a query at one coordinate sees along its axis.
Span window_at(const Axis& axis, Border border, Position at) {
  const Position radius = std::min(axis.radius, axis.size);
  if (border == Border::cut) {
    return {std::max<Position>(0, at - radius), std::min(axis.size, at + radius + 1)};
  }
  const Position width = std::min(axis.size, 2 * radius + 1);
  const Position begin = std::clamp<Position>(at - radius, 0, axis.size - width);
  return {begin, begin + width};
}

class Lattice final : public Node {
 public:
  Lattice(std::string_view name, Border border, std::vector<Axis> axes)
      : name_(name), border_(border), axes_(std::move(axes)), steps_(axes_.size()) {
    for (size_t a = axes_.size(); a-- > 0; points_ *= axes_[a].size) steps_[a] = points_;
    // An axis whose window covers it from every point restricts nothing.
    while (num_cut_ > 1 && is_whole(num_cut_ - 1)) --num_cut_;
  }

  bool allows(Position q, Position k) const override {
    if (q < 0 || q >= points_ || k < 0 || k >= points_) return false;
    for (size_t a = 0; a < axes_.size(); ++a) {
      const Span window = window_at(axes_[a], border_, q / steps_[a] % axes_[a].size);
      const Position at = k / steps_[a] % axes_[a].size;
      if (at < window.begin || at >= window.end) return false;
    }
    return true;
  }

  std::string text() const override {
    std::string text = say(name_, "(");
    for (const Axis& axis : axes_) text += say(axis.size, ", ");
    for (const Axis& axis : axes_) text += say(axis.radius, ", ");
    text.resize(text.size() - 2);
    return text + ")";
  }

  void strip(Span q, Span k, Position grain, Strip& out) const override {
    const Span inside = intersect(q, {0, points_});
    if (inside.is_empty() || k.is_empty()) return;
    // Rows of points that are shorter than two grains are not looked into.
    size_t num_axes = num_cut_;
    while (grain > 1 && num_axes > 1 && steps_[num_axes - 2] < 2 * grain) --num_axes;
    const bool is_exact = num_axes == num_cut_;
    const Position step = steps_[num_axes - 1], row = step * axes_[num_axes - 1].size;
    Strip exact;
    for (Position begin = inside.begin; begin < inside.end;) {
      const Position end = std::min(inside.end, round_up(begin + 1, row));
      Strip piece;
      strip_of_piece({begin, end}, k, num_axes, is_exact, piece);
      exact = begin == inside.begin ? piece : joined(exact, piece);
      begin = end;
    }
    if (inside != q) exact = joined(exact, Strip());  // queries outside the box see nothing
    append_blurred(exact, grain, out);
  }

  // From the innermost axis out. As long as neither queries nor keys pass the end of an axis, only
  // their distance along it counts, and at a border that shifts windows, where they stand.
  bool sign(const Rect& rect, Signature& signature) const override {
    const Span q = intersect(rect.q, {0, points_}), k = intersect(rect.k, {0, points_});
    if (q.is_empty() || k.is_empty()) return false;
    for (const Position value : {q.begin - rect.q.begin, q.end - rect.q.begin,
                                 k.begin - rect.k.begin, k.end - rect.k.begin}) {
      signature.add(value);
    }
    for (size_t a = axes_.size(); a-- > 0;) {
      const Span q_at = along(a, q), k_at = along(a, k);
      const bool is_wrapped = q_at.end > axes_[a].size || k_at.end > axes_[a].size;
      signature.add(is_wrapped);
      if (is_wrapped) {
        signature.add(q_at.begin), signature.add(k_at.begin);
      } else if (!is_whole(a)) {
        signature.add(k_at.begin - q_at.begin);
        const Position radius = axes_[a].radius;
        const bool is_free =
            border_ == Border::cut || (q_at.begin >= radius && q_at.end <= axes_[a].size - radius);
        signature.add(is_free ? -1 : q_at.begin);
      }
    }
    return true;
  }

  void draw(const Rect& rect, BitRows& bits) const override {
    const Span q = intersect(rect.q, {0, points_});
    for (Position p = q.begin; p < q.end; ++p) {
      Strip seen;
      strip_of_piece({p, p + 1}, rect.k, num_cut_, /*is_exact=*/true, seen);
      for (const Segment& part : seen) {
        set_bits(bits.row(int32_t(p - rect.q.begin)), part.begin - rect.k.begin,
                 part.end - rect.k.begin);
      }
    }
  }

  std::optional<KnownSizes> sizes() const override {
    return KnownSizes{.made_by = name_,
                      .way_out =
                          "give sizes whose product is the number of keys; give tokens "
                          "outside the grid positions below 0 with at(...)",
                      .most_q = points_,
                      .least_k = points_,
                      .most_k = points_};
  }

  // Every stride-th column is a box again, of fewer columns that are as near: where the border
  // cuts.
  NodePtr in_residue(int64_t stride, int64_t residue) const override {
    const Axis& columns = axes_.back();
    if (border_ != Border::cut || columns.size % stride != 0 || residue < 0 || residue >= stride) {
      return Node::in_residue(stride, residue);
    }
    std::vector<Axis> axes = axes_;
    axes.back() = {columns.name, columns.size / stride, columns.radius / stride};
    return std::make_shared<Lattice>(name_, border_, std::move(axes));
  }

 private:
  bool is_whole(size_t a) const {
    const int64_t size = axes_[a].size, radius = axes_[a].radius;
    return radius >= size - 1 || (border_ == Border::shift && radius >= size / 2);
  }

  // The coordinates of p along one axis; beyond its size where p goes on in the next row.
  Span along(size_t a, Span p) const {
    const Position first = p.begin / steps_[a], last = (p.end - 1) / steps_[a];
    const Position at = first % axes_[a].size;
    return {at, at + last - first + 1};
  }

  // Queries of one row along axis num_axes - 1: the axes before it have one coordinate, and those
  // behind it are whole.
  void strip_of_piece(Span q, Span k, size_t num_axes, bool is_exact, Strip& out) const {
    const size_t last = num_axes - 1;
    const Span at = along(last, q);
    const Span first = window_at(axes_[last], border_, at.begin);
    const Span final = window_at(axes_[last], border_, at.end - 1);
    const Span any = {first.begin, final.end};
    Span every = {final.begin, first.end};
    if (!is_exact || every.is_empty()) every = {any.end, any.end};
    rows_seen(q.begin, k, 0, last, 0, [&](Position begin) {
      const Position step = steps_[last];
      append_inside(k, begin + any.begin * step, begin + every.begin * step, Cover::some, out);
      append_inside(k, begin + every.begin * step, begin + every.end * step, Cover::all, out);
      append_inside(k, begin + every.end * step, begin + any.end * step, Cover::some, out);
    });
  }

  // Calls visit(first point) for every row that q sees along the axes a ... last - 1 and that has
  // points in k; `begin` is the first point of what the axes before a have settled.
  template <class Visit>
  void rows_seen(Position q, Span k, size_t a, size_t last, Position begin, Visit&& visit) const {
    if (a == last) return visit(begin);
    const Span window = window_at(axes_[a], border_, q / steps_[a] % axes_[a].size);
    const Position from = std::max(window.begin, floor_div(k.begin - begin, steps_[a]));
    const Position to = std::min(window.end, floor_div(k.end - 1 - begin, steps_[a]) + 1);
    for (Position at = from; at < to; ++at) {
      rows_seen(q, k, a + 1, last, begin + at * steps_[a], visit);
    }
  }

  std::string name_;
  Border border_;
  std::vector<Axis> axes_;
  std::vector<int64_t> steps_;  // how far apart neighbours along an axis are
  int64_t points_ = 1;
  size_t num_cut_ = axes_.size();  // axes from the outermost to the last that is not seen whole
};

}  // namespace

Pattern lattice(std::string_view name, Border border, std::vector<Axis> axes) {
  int64_t points = 1;
  for (const Axis& axis : axes) {
    KEYHOLE_CHECK(axis.size >= 1, name, ": ", axis.name, " is ", axis.size,
                  "; it must be 1 or more");
    KEYHOLE_CHECK(axis.radius >= 0, name, ": the radius along ", axis.name, " is ", axis.radius,
                  "; it must be 0 or more");
    KEYHOLE_CHECK(axis.size <= kUnbounded / points, name, ": there are more than ", kUnbounded,
                  " positions; make ", axis.name, " smaller");
    points *= axis.size;
  }
  return Pattern(std::make_shared<Lattice>(name, border, std::move(axes)));
}

}  // namespace keyhole
