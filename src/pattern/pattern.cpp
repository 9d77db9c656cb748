// src/pattern/pattern.cpp
// Pattern and HeadPattern, the values that users hold; and a pattern as a picture.
#include "keyhole/pattern.h"

#include <ostream>

#include "base/check.h"
#include "pattern/fit.h"
#include "pattern/node.h"
#include "pattern/simplify.h"
#include "pattern/smallest_shape.h"

namespace keyhole {
namespace {

void check_shape(const Shape& shape, int64_t batch, int64_t head) {
  const auto check_length = [](const char* name, int64_t length) {
    KEYHOLE_CHECK(length >= 0 && length <= kMaxPosition, "shape: ", name, " is ", length,
                  "; accepted: 0 to ", kMaxPosition);
  };
  check_length("q_len", shape.q_len);
  check_length("k_len", shape.k_len);
  KEYHOLE_CHECK(shape.q_offset() >= -kMaxPosition && shape.q_offset() <= kMaxPosition - shape.q_len,
                "shape: the offset ", shape.q_offset(), " puts ", shape.q_len,
                " queries outside the accepted positions, ", -kMaxPosition, " to ", kMaxPosition);
  KEYHOLE_CHECK(batch >= 0 && batch < shape.batch, "shape: batch entry ", batch,
                " was asked for, but there are ", shape.batch, "; they count from 0");
  KEYHOLE_CHECK(head >= 0 && head < shape.heads, "shape: head ", head,
                " was asked for, but there are ", shape.heads, "; they count from 0");
}

}  // namespace

bool HeadPattern::allows(int64_t query, int64_t key) const {
  return node_->allows(query + q_offset_, key);
}

std::string Pattern::text() const { return node_->text(); }

HeadPattern Pattern::for_head(const Shape& shape, int64_t batch, int64_t head) const {
  check_shape(shape, batch, head);
  const Scope scope{shape, batch, head};
  check_fit(*node_, scope);
  NodePtr resolved = node_->resolve(scope);
  KEYHOLE_ASSERT(resolved->is_resolved(), "\"", text(), "\" still depends on head or batch entry");
  return HeadPattern(std::move(resolved), shape.q_offset());
}

bool Pattern::depends_on_heads(int64_t q_len, int64_t k_len) const {
  return node_->depends_on_heads(q_len, k_len);
}

Pattern operator&(const Pattern& a, const Pattern& b) {
  return Pattern(make_and(a.node_, b.node_));
}
Pattern operator|(const Pattern& a, const Pattern& b) { return Pattern(make_or(a.node_, b.node_)); }
Pattern operator~(const Pattern& a) { return Pattern(make_not(a.node_)); }
bool operator==(const Pattern& a, const Pattern& b) {
  return is_same_expression(*a.node_, *b.node_);
}

std::ostream& operator<<(std::ostream& stream, const Pattern& pattern) {
  return stream << pattern.text();
}

std::string picture(const Pattern& pattern, int64_t q_len, int64_t k_len) {
  const HeadPattern head = pattern.for_head(smallest_shape(pattern, q_len, k_len));
  std::string out;
  for (int64_t query = 0; query < q_len; ++query) {
    for (int64_t key = 0; key < k_len; ++key) {
      if (key > 0) out += ' ';
      out += head.allows(query, key) ? '#' : '.';
    }
    out += '\n';
  }
  return out;
}

}  // namespace keyhole
