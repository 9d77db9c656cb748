// cli/bench/select_step.h
// What a benchmark of key selection times.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "keyhole/tensor.h"

namespace keyhole::bench {

struct SelectSizes {
  int64_t queries = 0, entries = 0, heads = 0, head_dim = 0, k = 0;
  int64_t q_heads = 0;  // of the attention; 0: none
  DType dtype = DType::f32;
};

// Something to time. After a run, check() compares some rows with the definition: empty, or what is
// wrong.
struct SelectStep {
  std::string kernel;
  double work = 0;  // multiplications and additions, or bytes
  std::function<void()> run;
  std::function<std::string()> check;
};

}  // namespace keyhole::bench
