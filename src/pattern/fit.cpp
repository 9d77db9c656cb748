// src/pattern/fit.cpp
// Walks the parts of a pattern that a call reaches and compares what each was made for with what it
// is asked.
#include "pattern/fit.h"

#include "base/check.h"

namespace keyhole {
namespace {

std::string count(int64_t number, const char* one, const char* many) {
  return say(number, " ", number == 1 ? one : many);
}

// "positions 2 to 5"; one number, or none, reads as such.
std::string positions(Span span) {
  if (span.is_empty()) return "no position";
  if (span.size() == 1) return say("position ", span.begin);
  return say("positions ", span.begin, " to ", span.end - 1);
}

bool knows_heads(const KnownSizes& sizes) { return sizes.batch != 1 || sizes.heads != 1; }

std::string heads_text(int64_t batch, int64_t heads) {
  return say(", for ", count(batch, "batch entry", "batch entries"), " of ",
             count(heads, "head", "heads"));
}

// "7 queries and 8 keys", "8 positions", "5 to 8 positions and at least 5 keys", "queries at
// positions 0 to 1 and 4 keys"
std::string lengths_text(const KnownSizes& sizes) {
  const std::string keys = count(sizes.least_k, "key", "keys");
  if (sizes.counts_queries) return say(count(sizes.most_q, "query", "queries"), " and ", keys);
  const std::string positions_text = count(sizes.most_q, "position", "positions");
  if (sizes.least_k != sizes.most_k) {  // rows alone
    const std::string least = sizes.least_q < sizes.most_q ? say(sizes.least_q, " to ") : "";
    return say(least, positions_text, " and at least ", keys);
  }
  if (sizes.most_q == sizes.most_k) return positions_text;
  return say("queries at ", positions({0, sizes.most_q}), " and ", keys);
}

std::string text_of(const KnownSizes& sizes) {
  const std::string text = lengths_text(sizes);
  return knows_heads(sizes) ? text + heads_text(sizes.batch, sizes.heads) : text;
}

std::string text_of(const Asked& asked, const KnownSizes& sizes) {
  const Shape& shape = asked.scope.shape;
  std::string text;
  if (asked.gives_positions && !(sizes.counts_queries && shape.q_len != sizes.most_q)) {
    text = say(asked.asked_by, " puts queries at ", positions(asked.q), " and keys at ",
               positions(asked.k));
  } else {
    text = say(asked.asked_by, " has ", count(shape.q_len, "query", "queries"));
    if (!sizes.counts_queries) text += say(" at ", positions(asked.q));
    text += say(" and ", count(shape.k_len, "key", "keys"));
  }
  return knows_heads(sizes) ? text + heads_text(shape.batch, shape.heads) : text;
}

// Explicit positions below 0 stand outside on purpose, and attend to nothing; those beyond the end
// are the lengths of another call.
bool fits_positions(const KnownSizes& sizes, const Asked& asked) {
  const int64_t first = sizes.counts_queries ? asked.scope.shape.q_offset() : 0;
  return asked.q.end - first <= sizes.most_q && asked.k.end <= sizes.most_k;
}

bool fits_lengths(const KnownSizes& sizes, const Asked& asked) {
  const Shape& shape = asked.scope.shape;
  if (shape.k_len < sizes.least_k || shape.k_len > sizes.most_k) return false;
  if (sizes.counts_queries) return shape.q_len == sizes.most_q;
  const bool ends_with_keys = asked.q.end == shape.k_len;
  if (ends_with_keys && shape.k_len < sizes.least_q) return false;
  return asked.q.is_empty() || (asked.q.begin >= 0 && asked.q.end <= sizes.most_q);
}

bool fits(const KnownSizes& sizes, const Asked& asked) {
  const Shape& shape = asked.scope.shape;
  if (sizes.batch != 1 && sizes.batch != shape.batch) return false;
  if (sizes.heads != 1 && sizes.heads != shape.heads) return false;
  if (!asked.gives_positions) return fits_lengths(sizes, asked);
  if (sizes.counts_queries && !fits_lengths(sizes, asked)) return false;
  return fits_positions(sizes, asked);
}

// Two parts that no call fits at once: the first misfit alone would send the user in a circle.
std::string other_part(const KnownSizes& misfit, const std::vector<KnownSizes>& fitting) {
  for (const KnownSizes& other : fitting) {
    if (text_of(other) == text_of(misfit)) continue;
    return say("; ", other.made_by, " in the same pattern is made for ", text_of(other));
  }
  return "";
}

class Walk {
 public:
  void visit(const Node& node, const Asked& asked) {
    if (const std::optional<KnownSizes> sizes = node.sizes()) {
      if (!fits(*sizes, asked)) {
        throw Error(ErrorKind::usage, say(sizes->made_by, ": made for ", text_of(*sizes), ", but ",
                                          text_of(asked, *sizes), "; ", sizes->way_out,
                                          other_part(*sizes, fitting_)));
      }
      fitting_.push_back(*sizes);
    }
    node.for_each_asked(asked,
                        [this](const Node& part, const Asked& there) { visit(part, there); });
  }

 private:
  std::vector<KnownSizes> fitting_;
};

}  // namespace

void check_fit(const Node& pattern, const Scope& scope) {
  const Position first = scope.shape.q_offset();
  Walk().visit(pattern, {scope, {first, first + scope.shape.q_len}, {0, scope.shape.k_len}});
}

}  // namespace keyhole
