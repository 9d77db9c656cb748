// tests/support/generator.h
// From a 64-bit seed to a pattern or a case. The same seed gives the same case on every machine.
#pragma once

#include <cstdint>

#include "base/random.h"
#include "support/case.h"

namespace keyhole::test {

// A length, a window, a size: small ones, neighbours of multiples of 8 to 256, primes, anything up
// to about twice `around` (parameters beyond the sequence are legal).
int64_t draw_integer(Random& random, int64_t around);

// A pattern over the whole catalog, the operators, arrays, per_head, per_batch and at.
Expression draw_pattern(Random& random, const Shape& shape);

// A case that a kernel test can afford: about `work` multiplications per product.
Case draw_case(uint64_t seed, int64_t work = 120'000);

// The same for kernels of GPUs: no f64, more work, and three in four of a kind that tensor cores
// take (head_dim in multiples of 8, rows that begin at multiples of 16 bytes).
Case draw_gpu_case(uint64_t seed);

// Of that kind: key lists that four rows or more share, over so many keys that a deterministic pass
// takes several spans of them. One in ten of draw_gpu_case is like this.
Case draw_key_list_case(uint64_t seed);

}  // namespace keyhole::test
