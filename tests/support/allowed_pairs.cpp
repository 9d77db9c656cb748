// tests/support/allowed_pairs.cpp
#include "support/allowed_pairs.h"

#include <algorithm>

namespace keyhole::test {

AllowedPairs::AllowedPairs(const Pattern& pattern, const Shape& shape)
    : shape_(shape), allowed_(size_t(shape.batch * shape.heads * shape.q_len * shape.k_len)) {
  uint8_t* pair = allowed_.data();
  for (int64_t batch = 0; batch < shape.batch; ++batch) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      const HeadPattern asked = pattern.for_head(shape, batch, head);
      for (int64_t query = 0; query < shape.q_len; ++query) {
        for (int64_t key = 0; key < shape.k_len; ++key) *pair++ = asked.allows(query, key);
      }
    }
  }
}

int64_t AllowedPairs::count(int64_t batch, int64_t head, int64_t query) const {
  const uint8_t* first = row(batch, head, query);
  return std::count(first, first + shape_.k_len, uint8_t{1});
}

}  // namespace keyhole::test
