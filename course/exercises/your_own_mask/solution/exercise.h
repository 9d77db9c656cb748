// course/exercises/your_own_mask/solution/exercise.h
// A pattern to a given specification.
#pragma once

#include <keyhole/keyhole.h>

#include <cstdint>
#include <vector>

namespace course {

// Each token sees
//   - itself and the `neighbours` tokens just before it, also those of the paragraph before,
//   - the first token of its own paragraph,
//   - every stride-th token before it: those stride, 2 * stride, 3 * stride, ... tokens back,
// and nothing else. No token sees a later one.
inline keyhole::Pattern my_pattern(const std::vector<int64_t>& paragraphs, int64_t neighbours,
                                   int64_t stride) {
  using namespace keyhole;

  std::vector<int64_t> starts;
  int64_t start = 0;
  for (const int64_t tokens : paragraphs) {
    starts.push_back(start);
    start += tokens;
  }
  // global_at: the query or the key is one of the starts. In one paragraph there is one start. As a
  // key it is what we want. As a query it sees, under causal, only itself.
  const Pattern own_start = documents(paragraphs) & global_at(starts);
  return causal() & (window(neighbours, 0) | own_start | dilated(stride));
}

}  // namespace course
