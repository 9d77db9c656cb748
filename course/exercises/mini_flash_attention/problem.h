// course/exercises/mini_flash_attention/problem.h
// What your function is given: the tensors, what each query sees, and memory to work in.
#pragma once

#include <cstddef>
#include <deque>
#include <limits>
#include <vector>

namespace course {

struct Problem {
  int queries = 0, keys = 0, head_dim = 0;
  int tile = 16;             // keys of a tile; the last tile may have fewer
  float scale = 1;           // score = scale * (q . k)
  const float* q = nullptr;  // [queries][head_dim]
  const float* k = nullptr;  // [keys][head_dim]
  const float* v = nullptr;  // [keys][head_dim]
  // [queries]: query i sees the keys first[i] <= key < end[i]. Where both are equal, it sees
  // nothing.
  const int* first = nullptr;
  const int* end = nullptr;
};

// The only memory to take, besides a few plain variables. The tests count how much was taken.
class Scratch {
 public:
  // Memory for `count` floats. It holds NaN until you write to it, and lives as long as the call.
  float* floats(int count) {
    taken_ += count;
    blocks_.emplace_back(static_cast<std::size_t>(count), std::numeric_limits<float>::quiet_NaN());
    return blocks_.back().data();
  }
  long taken() const { return taken_; }

 private:
  std::deque<std::vector<float>> blocks_;
  long taken_ = 0;
};

}  // namespace course
