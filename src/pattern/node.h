// src/pattern/node.h
// The questions a pattern answers. `allows` is the definition; everything else is a promise about
// many pairs at once that must never contradict it (tests/pattern/laws_test.cpp holds every node to
// that), and may be left out: the result is the same, only slower to compile.
//
// Positions may be negative (queries before the first key when q_len > k_len) and may lie beyond
// the sequence; a node answers for any of them up to kMaxPosition in magnitude.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bits.h"
#include "keyhole/pattern.h"
#include "pattern/cover.h"
#include "pattern/strip.h"

namespace keyhole {

// No position is farther from 0 than this, so that no distance k - q passes kUnbounded.
inline constexpr Position kMaxPosition = kUnbounded / 2;

// A rectangle of pairs, in positions.
struct Rect {
  Span q, k;
  // The smallest and the largest k - q inside it.
  std::pair<Position, Position> diagonals() const {
    return {k.begin - (q.end - 1), k.end - 1 - q.begin};
  }
};

// What resolving needs to know.
struct Scope {
  Shape shape;
  int64_t batch = 0, head = 0;
};

// What is asked of a node where a pattern meets a call (fit.h).
struct Asked {
  Scope scope;
  Span q, k;                               // the positions of the queries and of the keys
  std::string_view asked_by = "the call";  // or `at`, or a document of `packed`
  bool gives_positions = false;            // `at`: one for each query and key, anywhere
};

// The calls that a node was made for, where it knows: one that was made from arrays does.
struct KnownSizes {
  std::string_view made_by;                  // what the user wrote: "documents", "from_dense"
  std::string_view way_out;                  // what to write instead, for an error
  int64_t most_q = 0;                        // it has rows for the query positions 0 to most_q - 1
  int64_t least_k = 0, most_k = kUnbounded;  // and is for so many keys
  // Of rows without a number of keys: where the last query is the last key, it is in one of the
  // rows least_q - 1 to most_q - 1. The last tile may be cut short.
  int64_t least_q = 0;
  bool counts_queries = false;   // row i is query i, wherever it stands: most_q is q_len
  int64_t batch = 1, heads = 1;  // 1: any number
};

// Everything that `allows` depends on inside a rectangle, as numbers: two rectangles of one size
// with equal signatures hold the same bitmap.
class Signature {
 public:
  void add(int64_t value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void clear() { bytes_.clear(); }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

class Node : public std::enable_shared_from_this<Node> {
 public:
  virtual ~Node() = default;

  // The definition: may the query at position q see the key at position k?
  virtual bool allows(Position q, Position k) const = 0;

  // The text that parse() reads; `~`, `&` and `|` add the parentheses they need.
  virtual std::string text() const = 0;

  // What the queries q see of the keys k, appended to an empty `out`, clipped to k. Gaps and
  // segments shorter than `grain` may be blurred into `some`; with one query and grain 1, a good
  // answer has no `some` in it. Never costs more than about k.size() / grain.
  virtual void strip(Span q, Span k, Position grain, Strip& out) const {
    (void)q, (void)grain;
    out.append(k.begin, k.end, Cover::some);
  }

  // The cover of a rectangle; by default read off the strip.
  virtual Cover cover(const Rect& rect) const;

  // Appends what allows() depends on inside rect, relative to its corner; false: it cannot say.
  // Only called where cover() is `some`.
  virtual bool sign(const Rect& rect, Signature& signature) const {
    (void)rect, (void)signature;
    return false;
  }

  // Sets the bit of every pair of rect that attends; `bits` arrives clear and has rect's size.
  // By default row by row from strips, and pair by pair where those say `some`.
  virtual void draw(const Rect& rect, BitRows& bits) const;

  // The same pattern among the positions residue + stride * p alone: allows(q', k') there is
  // allows(residue + stride * q', residue + stride * k') here. By default a wrapper that is always
  // right; leaves that have an exact form return it.
  virtual NodePtr in_residue(int64_t stride, int64_t residue) const;

  // The pattern as one head of one batch entry of one shape sees it. Most nodes are that already.
  virtual NodePtr resolve(const Scope& scope) const {
    (void)scope;
    return shared_from_this();
  }
  // True when allows() may be asked without resolve().
  virtual bool is_resolved() const { return true; }
  // Whether resolve() looks at the batch entry or the head, or at how many there are, for these
  // lengths. By default: whether that of a child does.
  virtual bool depends_on_heads(int64_t q_len, int64_t k_len) const;

  // What the node itself knows of the calls it is for; its children are asked on their own. It
  // answers for any position all the same: only check_fit() refuses.
  virtual std::optional<KnownSizes> sizes() const { return {}; }
  using VisitAsked = std::function<void(const Node& part, const Asked& asked)>;
  // Calls visit for each child that a call reaches, with what it is asked there. By default: all of
  // them, the same.
  virtual void for_each_asked(const Asked& asked, const VisitAsked& visit) const;

  // For the passes that take unions apart, and for printing.
  enum class Kind : uint8_t {
    leaf,
    conjunction,
    disjunction,
    negation,
    named,
    per_head,
    per_batch,
    at
  };
  virtual Kind kind() const { return Kind::leaf; }
  virtual std::vector<NodePtr> children() const { return {}; }
  // dilated(s): s. The planner compiles such a leaf inside residue classes modulo s.
  virtual int64_t dilation() const { return 1; }
  // True for nodes that can only be asked pair by pair (lambda).
  virtual bool is_opaque() const { return false; }
};

// What a part adds to the signature of the whole: its cover, and its own signature where that
// matters. The length behind it keeps what follows from being read as part of it.
bool sign_part(const Node& part, const Rect& rect, Signature& signature);

// Node factories shared by algebra, parser and planner. They build what was written, so that it
// prints as it was written; simplify() (simplify.h) is for those who want it shorter.
NodePtr make_and(NodePtr a, NodePtr b);
NodePtr make_or(NodePtr a, NodePtr b);
NodePtr make_not(NodePtr a);
// A name for a composition: prints `text`, behaves like `meaning`.
NodePtr make_named(std::string text, NodePtr meaning);
NodePtr make_nothing();  // no pair; prints as ~dense

}  // namespace keyhole
