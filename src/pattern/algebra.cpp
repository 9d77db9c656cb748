// src/pattern/algebra.cpp
// The operators `~`, `&` and `|`, and names for compositions. Each answers by asking its children
// and combining: strips by sweeps, covers by three-valued logic, bitmaps word by word.
#include <algorithm>

#include "pattern/node.h"

namespace keyhole {
namespace {

using Kind = Node::Kind;

// `~` binds before `&`, `&` before `|`; names, leaves and functions need no parentheses at all.
int binding(Kind kind) {
  if (kind == Kind::disjunction) return 0;
  if (kind == Kind::conjunction) return 1;
  return 2;
}
std::string text_inside(const Node& child, int least_binding) {
  const std::string text = child.text();
  return binding(child.kind()) < least_binding ? "(" + text + ")" : text;
}

// Applies `change` to every child; `changed` says whether any came back as another node.
template <class Change>
std::vector<NodePtr> changed_children(const std::vector<NodePtr>& children, Change change,
                                      bool& changed) {
  std::vector<NodePtr> out;
  out.reserve(children.size());
  for (const NodePtr& child : children) {
    out.push_back(change(*child));
    changed |= out.back() != child;
  }
  return out;
}

// a & b & c or a | b | c. Both are associative, so nests of one operator are one node.
template <Kind kKind>
class Chain final : public Node {
  static constexpr bool kIsAnd = kKind == Kind::conjunction;
  // The answer of a child that settles the pair, whatever its siblings say; and the other one.
  static constexpr Cover kSettled = kIsAnd ? Cover::none : Cover::all;
  static constexpr Cover kNeutral = ~kSettled;

 public:
  static NodePtr make(const std::vector<NodePtr>& parts) {
    std::vector<NodePtr> flat;
    for (const NodePtr& part : parts) {
      if (part->kind() != kKind) {
        flat.push_back(part);
        continue;
      }
      for (NodePtr& grandchild : part->children()) flat.push_back(std::move(grandchild));
    }
    return std::make_shared<Chain>(std::move(flat));
  }
  explicit Chain(std::vector<NodePtr> children) : children_(std::move(children)) {}

  bool allows(Position q, Position k) const override {
    for (const NodePtr& child : children_) {
      if (child->allows(q, k) != kIsAnd) return !kIsAnd;
    }
    return kIsAnd;
  }

  std::string text() const override {
    std::string out;
    for (const NodePtr& child : children_) {
      if (!out.empty()) out += kIsAnd ? " & " : " | ";
      out += text_inside(*child, binding(kKind));
    }
    return out;
  }

  void strip(Span q, Span k, Position grain, Strip& out) const override {
    children_[0]->strip(q, k, grain, out);
    for (size_t i = 1; i < children_.size(); ++i) {
      if constexpr (kIsAnd) {
        if (out.empty()) return;
        k = {out[0].begin, out.back().end};  // no query sees a key outside
      }
      Strip next;
      children_[i]->strip(q, k, grain, next);
      out = kIsAnd ? both(out, next) : either(out, next);
    }
  }

  Cover cover(const Rect& rect) const override {
    Cover answer = kNeutral;
    for (const NodePtr& child : children_) {
      answer = kIsAnd ? answer & child->cover(rect) : answer | child->cover(rect);
      if (answer == kSettled) break;
    }
    return answer;
  }

  bool sign(const Rect& rect, Signature& signature) const override {
    return std::all_of(children_.begin(), children_.end(),
                       [&](const NodePtr& child) { return sign_part(*child, rect, signature); });
  }

  void draw(const Rect& rect, BitRows& bits) const override {
    bool is_first = true;
    for (const NodePtr& child : children_) {
      if (child->cover(rect) == kNeutral) continue;
      if (is_first) {
        child->draw(rect, bits);
        is_first = false;
        continue;
      }
      BitRows drawn(bits.rows(), bits.columns());
      child->draw(rect, drawn);
      for (size_t i = 0; i < bits.data().size(); ++i) {
        bits.data()[i] =
            kIsAnd ? bits.data()[i] & drawn.data()[i] : bits.data()[i] | drawn.data()[i];
      }
    }
    if (is_first && kIsAnd) {  // every pair attends
      for (int32_t r = 0; r < int32_t(rect.q.size()); ++r) set_bits(bits.row(r), 0, rect.k.size());
    }
  }

  NodePtr in_residue(int64_t stride, int64_t residue) const override {
    return rebuilt([&](const Node& child) { return child.in_residue(stride, residue); });
  }
  NodePtr resolve(const Scope& scope) const override {
    return rebuilt([&](const Node& child) { return child.resolve(scope); });
  }
  bool is_resolved() const override {
    return std::all_of(children_.begin(), children_.end(),
                       [](const NodePtr& child) { return child->is_resolved(); });
  }
  bool is_opaque() const override {
    return std::any_of(children_.begin(), children_.end(),
                       [](const NodePtr& child) { return child->is_opaque(); });
  }
  Kind kind() const override { return kKind; }
  std::vector<NodePtr> children() const override { return children_; }

 private:
  template <class Change>
  NodePtr rebuilt(Change change) const {
    bool changed = false;
    const std::vector<NodePtr> parts = changed_children(children_, change, changed);
    return changed ? make(parts) : shared_from_this();
  }

  std::vector<NodePtr> children_;  // two or more, none of them of this kind
};

using And = Chain<Kind::conjunction>;
using Or = Chain<Kind::disjunction>;

class Not final : public Node {
 public:
  explicit Not(NodePtr child) : child_(std::move(child)) {}

  bool allows(Position q, Position k) const override { return !child_->allows(q, k); }
  std::string text() const override { return "~" + text_inside(*child_, binding(Kind::negation)); }
  void strip(Span q, Span k, Position grain, Strip& out) const override {
    if (q.is_empty()) return;
    Strip seen;
    child_->strip(q, k, grain, seen);
    out = complement(seen, k);
  }
  Cover cover(const Rect& rect) const override { return ~child_->cover(rect); }
  bool sign(const Rect& rect, Signature& signature) const override {
    return child_->sign(rect, signature);  // our cover is `some` exactly when the child's is
  }
  void draw(const Rect& rect, BitRows& bits) const override {
    child_->draw(rect, bits);
    const int64_t columns = rect.k.size();
    for (int32_t r = 0; r < int32_t(rect.q.size()); ++r) {
      uint64_t* row = bits.row(r);
      for (int64_t word = 0; word * 64 < columns; ++word) row[word] = ~row[word];
      if (columns % 64 != 0) row[columns / 64] &= (uint64_t{1} << columns % 64) - 1;
    }
  }
  NodePtr in_residue(int64_t stride, int64_t residue) const override {
    return rebuilt(child_->in_residue(stride, residue));
  }
  NodePtr resolve(const Scope& scope) const override { return rebuilt(child_->resolve(scope)); }
  bool is_resolved() const override { return child_->is_resolved(); }
  bool is_opaque() const override { return child_->is_opaque(); }
  Kind kind() const override { return Kind::negation; }
  std::vector<NodePtr> children() const override { return {child_}; }

 private:
  NodePtr rebuilt(NodePtr child) const {
    return child == child_ ? shared_from_this() : make_not(std::move(child));
  }

  NodePtr child_;
};

class Named final : public Node {
 public:
  Named(std::string text, NodePtr meaning) : text_(std::move(text)), meaning_(std::move(meaning)) {}

  bool allows(Position q, Position k) const override { return meaning_->allows(q, k); }
  std::string text() const override { return text_; }
  void strip(Span q, Span k, Position grain, Strip& out) const override {
    meaning_->strip(q, k, grain, out);
  }
  Cover cover(const Rect& rect) const override { return meaning_->cover(rect); }
  bool sign(const Rect& rect, Signature& signature) const override {
    return meaning_->sign(rect, signature);
  }
  void draw(const Rect& rect, BitRows& bits) const override { meaning_->draw(rect, bits); }
  // Inside a residue class it is another pattern, so the name would lie.
  NodePtr in_residue(int64_t stride, int64_t residue) const override {
    return stride == 1 ? shared_from_this() : meaning_->in_residue(stride, residue);
  }
  NodePtr resolve(const Scope& scope) const override {
    // A meaning that differs from head to head must not keep a text that does not: the planner
    // takes nodes of equal text for equal.
    NodePtr resolved = meaning_->resolve(scope);
    return resolved == meaning_ ? shared_from_this() : resolved;
  }
  bool is_resolved() const override { return meaning_->is_resolved(); }
  bool is_opaque() const override { return meaning_->is_opaque(); }
  Kind kind() const override { return Kind::named; }
  std::vector<NodePtr> children() const override { return {meaning_}; }

 private:
  std::string text_;
  NodePtr meaning_;
};

}  // namespace

NodePtr make_and(NodePtr a, NodePtr b) { return And::make({std::move(a), std::move(b)}); }
NodePtr make_or(NodePtr a, NodePtr b) { return Or::make({std::move(a), std::move(b)}); }
NodePtr make_not(NodePtr a) { return std::make_shared<Not>(std::move(a)); }
NodePtr make_named(std::string text, NodePtr meaning) {
  return std::make_shared<Named>(std::move(text), std::move(meaning));
}

}  // namespace keyhole
