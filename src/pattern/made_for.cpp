// src/pattern/made_for.cpp
#include "pattern/made_for.h"

#include "base/check.h"
#include "pattern/node.h"

namespace keyhole {
namespace {

class MadeFor final : public Node {
 public:
  MadeFor(std::string made_by, const MaskSizes& sizes, NodePtr child)
      : made_by_(std::move(made_by)), sizes_(sizes), child_(std::move(child)) {}

  bool allows(Position q, Position k) const override { return child_->allows(q, k); }
  std::string text() const override {
    const std::string heads = is_for_any_head() ? "" : say(sizes_.batch, "x", sizes_.heads, "x");
    return say(made_by_, "(<", heads, sizes_.q_len, "x", sizes_.k_len, ">, ", child_->text(), ")");
  }
  // Once it has met its call, nothing of it is left: equal masks are equal nodes to the planner.
  NodePtr resolve(const Scope& scope) const override { return child_->resolve(scope); }
  bool is_resolved() const override { return false; }
  bool depends_on_heads(int64_t q_len, int64_t k_len) const override {
    return !is_for_any_head() || child_->depends_on_heads(q_len, k_len);
  }
  bool is_opaque() const override { return child_->is_opaque(); }
  Kind kind() const override { return Kind::named; }
  std::vector<NodePtr> children() const override { return {child_}; }

  std::optional<KnownSizes> sizes() const override {
    return KnownSizes{
        .made_by = made_by_,
        .way_out = "make it again for these sizes (a batch or heads of 1 serve any number)",
        .most_q = sizes_.q_len,
        .least_k = sizes_.k_len,
        .most_k = sizes_.k_len,
        .counts_queries = sizes_.q_len != sizes_.k_len,
        .batch = sizes_.batch,
        .heads = sizes_.heads};
  }
  // It speaks for the leaves that the mask was turned into.
  void for_each_asked(const Asked&, const VisitAsked&) const override {}

 private:
  bool is_for_any_head() const { return sizes_.batch == 1 && sizes_.heads == 1; }

  std::string made_by_;
  MaskSizes sizes_;
  NodePtr child_;
};

}  // namespace

Pattern made_for(std::string made_by, const MaskSizes& sizes, const Pattern& pattern) {
  struct Size {
    const char* name;
    int64_t value, least;
  };
  for (const Size& size : {Size{"q_len", sizes.q_len, 0}, Size{"k_len", sizes.k_len, 0},
                           Size{"batch", sizes.batch, 1}, Size{"heads", sizes.heads, 1}}) {
    KEYHOLE_CHECK(size.value >= size.least && size.value <= kMaxPosition, made_by, ": ", size.name,
                  " is ", size.value, "; accepted: ", size.least, " to ", kMaxPosition);
  }
  return Pattern(std::make_shared<MadeFor>(std::move(made_by), sizes, pattern.node()));
}

}  // namespace keyhole
