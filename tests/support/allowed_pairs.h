// tests/support/allowed_pairs.h
// Which keys each query of each head may see, asked once from the pattern and then looked up.
#pragma once

#include <cstdint>
#include <vector>

#include "keyhole/pattern.h"

namespace keyhole::test {

class AllowedPairs {
 public:
  AllowedPairs(const Pattern& pattern, const Shape& shape);
  bool operator()(int64_t batch, int64_t head, int64_t query, int64_t key) const {
    return row(batch, head, query)[key] != 0;
  }
  const uint8_t* row(int64_t batch, int64_t head, int64_t query) const {
    return allowed_.data() + ((batch * shape_.heads + head) * shape_.q_len + query) * shape_.k_len;
  }
  int64_t count(int64_t batch, int64_t head, int64_t query) const;
  const Shape& shape() const { return shape_; }
  const std::vector<uint8_t>& all() const { return allowed_; }

 private:
  Shape shape_;
  std::vector<uint8_t> allowed_;  // [batch][heads][q_len][k_len]
};

}  // namespace keyhole::test
