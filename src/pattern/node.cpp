// src/pattern/node.cpp
// The answers of a node that does not know better: cover, drawing and residue classes, all from its
// strips and its definition.
#include "pattern/node.h"

#include <algorithm>

#include "base/check.h"
#include "base/int_math.h"

namespace keyhole {
namespace {

// Any pattern among the positions residue + stride * p. It asks the pattern about the smallest
// rectangle of real positions that holds the wanted ones: what holds for all pairs of that
// rectangle holds for every stride-th one, too.
class ResidueView final : public Node {
 public:
  ResidueView(NodePtr inner, int64_t stride, int64_t residue)
      : inner_(std::move(inner)), stride_(stride), residue_(residue) {}

  bool allows(Position q, Position k) const override {
    return inner_->allows(position(q), position(k));
  }
  // Only passes that work inside residue classes make this node: parse() does not read it.
  std::string text() const override {
    return say("residue(", inner_->text(), ", ", stride_, ", ", residue_, ")");
  }
  void strip(Span q, Span k, Position grain, Strip& out) const override {
    Position wide_grain;
    if (__builtin_mul_overflow(grain, stride_, &wide_grain)) wide_grain = kUnbounded;
    Strip wide;
    inner_->strip(hull(q), hull(k), wide_grain, wide);
    for (const Segment& segment : wide) {
      out.append(ceil_div(segment.begin - residue_, stride_),
                 ceil_div(segment.end - residue_, stride_), segment.cover);
    }
  }
  Cover cover(const Rect& rect) const override {
    return inner_->cover({hull(rect.q), hull(rect.k)});
  }
  // Equal hulls hold equal residue classes.
  bool sign(const Rect& rect, Signature& signature) const override {
    return inner_->sign({hull(rect.q), hull(rect.k)}, signature);
  }
  NodePtr in_residue(int64_t stride, int64_t residue) const override {
    return inner_->in_residue(checked_mul(stride_, stride, "residue class"),
                              residue_ + stride_ * residue);
  }
  NodePtr resolve(const Scope& scope) const override {
    NodePtr resolved = inner_->resolve(scope);
    if (resolved == inner_) return shared_from_this();
    return std::make_shared<ResidueView>(std::move(resolved), stride_, residue_);
  }
  bool is_resolved() const override { return inner_->is_resolved(); }
  std::vector<NodePtr> children() const override { return {inner_}; }
  bool is_opaque() const override { return inner_->is_opaque(); }

 private:
  Position position(Position p) const { return residue_ + stride_ * p; }
  Span hull(Span span) const {
    if (span.is_empty()) return {position(span.begin), position(span.begin)};
    return {position(span.begin), position(span.end - 1) + 1};
  }

  NodePtr inner_;
  int64_t stride_, residue_;
};

}  // namespace

Cover Node::cover(const Rect& rect) const {
  // A segment or gap that decides the answer spans all keys, so nothing shorter needs to be seen.
  Strip seen;
  strip(rect.q, rect.k, std::max<Position>(rect.k.size(), 1), seen);
  return cover_of(seen, rect.k);
}

bool sign_part(const Node& part, const Rect& rect, Signature& signature) {
  const Cover cover = part.cover(rect);
  signature.add(int64_t(cover));
  const size_t begin = signature.bytes().size();
  if (cover == Cover::some && !part.sign(rect, signature)) return false;
  signature.add(int64_t(signature.bytes().size() - begin));
  return true;
}

void Node::draw(const Rect& rect, BitRows& bits) const {
  Strip seen;
  for (Position q = rect.q.begin; q < rect.q.end; ++q) {
    uint64_t* row = bits.row(int32_t(q - rect.q.begin));
    seen.clear();
    strip({q, q + 1}, rect.k, 1, seen);
    for (const Segment& segment : seen) {
      if (segment.cover == Cover::all) {
        set_bits(row, segment.begin - rect.k.begin, segment.end - rect.k.begin);
        continue;
      }
      for (Position k = segment.begin; k < segment.end; ++k) {
        const Position column = k - rect.k.begin;
        if (allows(q, k)) row[column >> 6] |= uint64_t{1} << (column & 63);
      }
    }
  }
}

bool Node::depends_on_heads(int64_t q_len, int64_t k_len) const {
  if (is_resolved()) return false;
  const std::vector<NodePtr> parts = children();
  return std::any_of(parts.begin(), parts.end(),
                     [&](const NodePtr& part) { return part->depends_on_heads(q_len, k_len); });
}

void Node::for_each_asked(const Asked& asked, const VisitAsked& visit) const {
  for (const NodePtr& child : children()) visit(*child, asked);
}

NodePtr Node::in_residue(int64_t stride, int64_t residue) const {
  KEYHOLE_ASSERT(stride >= 1 && residue >= 0 && residue < stride, "residue ", residue, " modulo ",
                 stride);
  if (stride == 1) return shared_from_this();
  return std::make_shared<ResidueView>(shared_from_this(), stride, residue);
}

}  // namespace keyhole
