// src/pattern/scoped.cpp
// Patterns that depend on where they are asked: one per head, one per batch entry. They answer
// nothing before resolve() has picked the child that counts.
#include <algorithm>

#include "base/check.h"
#include "pattern/node.h"

namespace keyhole {
namespace {

class Choice final : public Node {
 public:
  Choice(Kind kind, std::vector<NodePtr> children) : kind_(kind), children_(std::move(children)) {}

  bool allows(Position, Position) const override {
    KEYHOLE_ASSERT(false, name(), " was asked before it was resolved");
  }
  std::string text() const override {
    std::string list;
    for (const NodePtr& child : children_) list += (list.empty() ? "" : ", ") + child->text();
    return say(name(), "(", list, ")");
  }
  NodePtr resolve(const Scope& scope) const override {
    const bool by_head = kind_ == Kind::per_head;
    const int64_t wanted = by_head ? scope.shape.heads : scope.shape.batch;
    const char* things = by_head ? "query heads (in a selection: groups)" : "batch entries";
    KEYHOLE_CHECK(int64_t(children_.size()) == wanted, name(), ": got ", children_.size(),
                  " patterns for ", wanted, " ", things, "; give one for each of them");
    return children_[size_t(by_head ? scope.head : scope.batch)]->resolve(scope);
  }
  bool is_resolved() const override { return false; }
  bool depends_on_heads(int64_t, int64_t) const override { return true; }
  void for_each_asked(const Asked& asked, const VisitAsked& visit) const override {
    const int64_t chosen = kind_ == Kind::per_head ? asked.scope.head : asked.scope.batch;
    // Too few of them are for resolve() to refuse.
    if (chosen < int64_t(children_.size())) visit(*children_[size_t(chosen)], asked);
  }
  bool is_opaque() const override {
    return std::any_of(children_.begin(), children_.end(),
                       [](const NodePtr& child) { return child->is_opaque(); });
  }
  Kind kind() const override { return kind_; }
  std::vector<NodePtr> children() const override { return children_; }

 private:
  const char* name() const { return kind_ == Kind::per_head ? "per_head" : "per_batch"; }

  Kind kind_;
  std::vector<NodePtr> children_;
};

Pattern make_choice(const char* name, Node::Kind kind, const std::vector<Pattern>& patterns) {
  KEYHOLE_CHECK(!patterns.empty(), name, ": got no patterns; give at least one");
  std::vector<NodePtr> children;
  for (const Pattern& pattern : patterns) children.push_back(pattern.node());
  return Pattern(std::make_shared<Choice>(kind, std::move(children)));
}

}  // namespace

Pattern per_head(std::vector<Pattern> patterns) {
  return make_choice("per_head", Node::Kind::per_head, patterns);
}
Pattern per_batch(std::vector<Pattern> patterns) {
  return make_choice("per_batch", Node::Kind::per_batch, patterns);
}

}  // namespace keyhole
