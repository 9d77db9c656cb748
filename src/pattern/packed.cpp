// src/pattern/packed.cpp
// packed(q_lengths, k_lengths, pattern): documents packed one behind the other, whose numbers of
// queries and of keys may differ. Document d holds the next q_lengths[d] queries and the next
// k_lengths[d] keys, and the pattern is asked about the positions inside it, as if the document
// were alone: its keys count from 0, its query i stands at i + (k_lengths[d] - q_lengths[d]). A
// document may have queries without keys (padding, which sees nothing) or keys without queries.
//
//   packed([2, 3], [3, 2], causal)      # # . . .
//                                       # # # . .
//                                       . . . . .       three queries, two keys: the first query
//                                       . . . # .       stands before the first key
//                                       . . . # #
#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <set>

#include "base/check.h"
#include "base/int_math.h"
#include "pattern/node.h"
#include "pattern/positions.h"
#include "pattern/simplify.h"

namespace keyhole {
namespace {

Span shifted(Span span, Position by) { return {span.begin + by, span.end + by}; }

// A document that has queries and keys; others hold no pair.
struct Document {
  Span q, k;     // as the whole counts them, from 0
  size_t child;  // which of the children its pairs ask

  // From the numbers of the whole to positions inside.
  Position q_shift() const { return k.size() - q.size() - q.begin; }
  Position k_shift() const { return -k.begin; }
  Rect inside(Span queries, Span keys) const {
    return {shifted(queries, q_shift()), shifted(keys, k_shift())};
  }
};

// For one head of one batch entry. A query's number is its usual position less `q_offset`.
class ResolvedPacked final : public Node {
 public:
  ResolvedPacked(std::string text, std::vector<Document> documents, std::vector<NodePtr> children,
                 int64_t q_offset)
      : text_(std::move(text)),
        documents_(std::move(documents)),
        children_(std::move(children)),
        q_offset_(q_offset) {}

  bool allows(Position q, Position k) const override {
    const Position query = q - q_offset_;
    const auto document = first_ending_behind(query);
    if (document == documents_.end() || query < document->q.begin) return false;
    if (k < document->k.begin || k >= document->k.end) return false;
    return child_of(*document).allows(query + document->q_shift(), k + document->k_shift());
  }
  std::string text() const override { return text_; }

  // Keys lie in the order of the documents, so each document appends behind the one before. Only a
  // band inside one document can see anything alike.
  void strip(Span q, Span k, Position grain, Strip& out) const override {
    Strip seen;
    for_each_block(q, k, [&](const Document& document, Span queries, Span keys) {
      const bool is_alone = queries.size() == q.size();
      if (!is_alone && keys.size() < grain) {
        out.append(keys.begin, keys.end, Cover::some);
        return true;
      }
      const Rect inside = document.inside(queries, keys);
      seen.clear();
      child_of(document).strip(inside.q, inside.k, grain, seen);
      for (const Segment& segment : seen) {
        out.append(segment.begin - document.k_shift(), segment.end - document.k_shift(),
                   is_alone ? segment.cover : Cover::some);
      }
      return true;
    });
  }

  Cover cover(const Rect& rect) const override {
    Cover answer = Cover::none;
    for_each_block(rect.q, rect.k, [&](const Document& document, Span queries, Span keys) {
      answer = child_of(document).cover(document.inside(queries, keys));
      const bool is_whole = queries.size() == rect.q.size() && keys.size() == rect.k.size();
      if (!is_whole && answer != Cover::none) answer = Cover::some;
      return answer == Cover::none;
    });
    return answer;
  }

  // Which blocks of pairs belong to a document, and what each of them holds.
  bool sign(const Rect& rect, Signature& signature) const override {
    bool can_say = true;
    int64_t num_blocks = 0;
    for_each_block(rect.q, rect.k, [&](const Document& document, Span queries, Span keys) {
      signature.add(queries.begin + q_offset_ - rect.q.begin);
      signature.add(queries.size());
      signature.add(keys.begin - rect.k.begin);
      signature.add(keys.size());
      signature.add(int64_t(document.child));
      can_say = sign_part(child_of(document), document.inside(queries, keys), signature);
      ++num_blocks;
      return can_say;
    });
    signature.add(num_blocks);
    return can_say;
  }

  std::vector<NodePtr> children() const override { return children_; }
  bool is_opaque() const override {
    return std::any_of(children_.begin(), children_.end(),
                       [](const NodePtr& child) { return child->is_opaque(); });
  }

 private:
  const Node& child_of(const Document& document) const { return *children_[document.child]; }

  std::vector<Document>::const_iterator first_ending_behind(Position query) const {
    return std::partition_point(documents_.begin(), documents_.end(),
                                [&](const Document& d) { return d.q.end <= query; });
  }

  // Calls visit(document, queries, keys), counted from 0, for each document with pairs among the
  // positions q and the keys k, in order; until it returns false.
  template <class Visit>
  void for_each_block(Span q, Span k, Visit visit) const {
    const Span queries = shifted(q, -q_offset_);
    if (queries.is_empty() || k.is_empty()) return;
    for (auto it = first_ending_behind(queries.begin); it != documents_.end(); ++it) {
      if (it->q.begin >= queries.end || it->k.begin >= k.end) return;
      const Span keys = intersect(it->k, k);
      if (!keys.is_empty() && !visit(*it, intersect(it->q, queries), keys)) return;
    }
  }

  std::string text_;
  std::vector<Document> documents_;  // ascending in queries and in keys
  std::vector<NodePtr> children_;
  int64_t q_offset_;
};

class Packed final : public Node {
 public:
  Packed(std::vector<int64_t> q_lengths, std::vector<int64_t> k_lengths, NodePtr child)
      : q_lengths_(std::move(q_lengths)),
        k_lengths_(std::move(k_lengths)),
        child_(std::move(child)) {}

  bool allows(Position, Position) const override {
    KEYHOLE_ASSERT(false, "packed was asked before it was resolved");
  }
  std::string text() const override { return text_of(child_->text()); }

  NodePtr resolve(const Scope& scope) const override {
    std::vector<Document> documents;
    std::vector<NodePtr> children;
    // What depends on lengths (random) differs between documents, and only there.
    std::map<std::pair<int64_t, int64_t>, size_t> child_of_lengths;
    Position q = 0, k = 0;
    for (size_t d = 0; d < q_lengths_.size(); ++d) {
      const Span queries = {q, q + q_lengths_[d]}, keys = {k, k + k_lengths_[d]};
      q = queries.end, k = keys.end;
      if (queries.is_empty() || keys.is_empty()) continue;
      const auto key = child_->is_resolved() ? std::pair<int64_t, int64_t>{}
                                             : std::pair{queries.size(), keys.size()};
      const auto [child, is_new] = child_of_lengths.try_emplace(key, children.size());
      if (is_new) {
        Scope inside = scope;
        inside.shape.q_len = queries.size();
        inside.shape.k_len = keys.size();
        inside.shape.offset.reset();
        children.push_back(simplify(child_->resolve(inside)));
      }
      documents.push_back({queries, keys, child->second});
    }
    // The text of this head alone: heads that see other pairs must not look equal to the planner.
    return std::make_shared<ResolvedPacked>(text_of(text_of_all(children)), std::move(documents),
                                            std::move(children), scope.shape.q_offset());
  }
  bool is_resolved() const override { return false; }
  // The child is asked about the lengths of documents.
  bool depends_on_heads(int64_t, int64_t) const override {
    if (child_->is_resolved()) return false;
    for (size_t d = 0; d < q_lengths_.size(); ++d) {
      if (q_lengths_[d] == 0 || k_lengths_[d] == 0) continue;
      if (child_->depends_on_heads(q_lengths_[d], k_lengths_[d])) return true;
    }
    return false;
  }
  std::vector<NodePtr> children() const override { return {child_}; }
  bool is_opaque() const override { return child_->is_opaque(); }
  std::optional<KnownSizes> sizes() const override {
    const int64_t keys = sum_of(k_lengths_);
    return KnownSizes{.made_by = "packed",
                      .way_out =
                          "give q_lengths and k_lengths that add up to them (from_cu_seqlens: "
                          "offsets that end there); padding is a document of 0 keys",
                      .most_q = sum_of(q_lengths_),
                      .least_k = keys,
                      .most_k = keys,
                      .counts_queries = true};
  }
  void for_each_asked(const Asked& asked, const VisitAsked& visit) const override {
    std::set<std::pair<int64_t, int64_t>> visited;  // documents of equal lengths ask the same
    for (size_t d = 0; d < q_lengths_.size(); ++d) {
      const int64_t q_len = q_lengths_[d], k_len = k_lengths_[d];
      if (q_len == 0 || k_len == 0 || !visited.emplace(q_len, k_len).second) continue;
      Asked inside{asked.scope, {k_len - q_len, k_len}, {0, k_len}, "a document of packed"};
      inside.scope.shape.q_len = q_len;
      inside.scope.shape.k_len = k_len;
      inside.scope.shape.offset.reset();
      visit(*child_, inside);
    }
  }

 private:
  static int64_t sum_of(const std::vector<int64_t>& lengths) {
    return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  }

  // One text where all children share it (they differ in lengths alone), so that parse() reads it
  // back; else all of them, which it does not read.
  static std::string text_of_all(const std::vector<NodePtr>& children) {
    if (children.empty()) return "dense";  // no document has pairs
    const std::string first = children.front()->text();
    std::string all;
    bool are_equal = true;
    for (const NodePtr& child : children) {
      const std::string text = child->text();
      are_equal = are_equal && text == first;
      all += (all.empty() ? "" : ", ") + text;
    }
    return are_equal ? first : all;
  }

  std::string text_of(const std::string& child) const {
    return say("packed(", list_text(q_lengths_, "lengths"), ", ", list_text(k_lengths_, "lengths"),
               ", ", child, ")");
  }

  std::vector<int64_t> q_lengths_, k_lengths_;
  NodePtr child_;
};

void check_lengths(const char* name, const std::vector<int64_t>& lengths) {
  int64_t sum = 0;
  for (size_t d = 0; d < lengths.size(); ++d) {
    KEYHOLE_CHECK(lengths[d] >= 0, "packed: ", name, "[", d, "] is ", lengths[d],
                  "; lengths must be 0 or more");
    KEYHOLE_CHECK(lengths[d] <= kMaxPosition - sum, "packed: ", name, " add up to more than ",
                  kMaxPosition);
    sum += lengths[d];
  }
}

}  // namespace

Pattern packed(std::vector<int64_t> q_lengths, std::vector<int64_t> k_lengths,
               const Pattern& pattern) {
  KEYHOLE_CHECK(q_lengths.size() == k_lengths.size(), "packed: got ", q_lengths.size(),
                " q_lengths and ", k_lengths.size(),
                " k_lengths; each document has one of both, 0 where it has no queries or no keys");
  check_lengths("q_lengths", q_lengths);
  check_lengths("k_lengths", k_lengths);
  return Pattern(
      std::make_shared<Packed>(std::move(q_lengths), std::move(k_lengths), pattern.node()));
}

}  // namespace keyhole
