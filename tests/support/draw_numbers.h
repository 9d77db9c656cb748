// tests/support/draw_numbers.h
// From a case to what its input tensors hold.
#pragma once

#include <cstdint>
#include <vector>

#include "support/allowed_pairs.h"
#include "support/case.h"
#include "support/numbers.h"

namespace keyhole::test {

struct InputNumbers {
  Numbers q, k, v, dout, sink;
  std::vector<uint8_t> empty_queries, unseen_keys;  // rows of q and dout, of k and v: spoilt ones

  InputNumbers() = default;
  InputNumbers(InputNumbers&&) = default;  // numbers point into the vectors
  InputNumbers& operator=(InputNumbers&&) = default;
};

InputNumbers draw_numbers(const Case& c, const AllowedPairs& allowed);

}  // namespace keyhole::test
