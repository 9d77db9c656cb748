// src/base/random.h
// Numbers for checks and benchmarks from one 64-bit seed: splitmix64 and plain arithmetic. The
// standard library's distributions are avoided because they differ between implementations, and a
// seed must mean the same case everywhere. Draw number i is a function of seed and i alone, so that
// a GPU can make any of them without those before it; what it calls is constexpr.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace keyhole {

class Random {
 public:
  constexpr explicit Random(uint64_t seed) : state_(seed) {}
  // Stands before draw number `index` of Random(seed).
  static constexpr Random at(uint64_t seed, int64_t index) {
    return Random(seed + uint64_t(index) * kStep);
  }

  constexpr uint64_t next() {
    state_ += kStep;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // Uniform in [0, count); the bias of the remainder is far below what a check can see.
  constexpr int64_t below(int64_t count) {
    return count <= 0 ? 0 : int64_t(next() % uint64_t(count));
  }
  constexpr int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  constexpr bool chance(int percent) { return below(100) < percent; }
  constexpr double uniform() { return double(next() >> 11) * 0x1p-53; }  // [0, 1)
  // Close to a standard normal: twelve uniforms, centred. Bounded by 6, exact the same everywhere.
  constexpr double normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }
  // Normal enough for bulk data, four draws instead of twelve; bounded by 3.5.
  constexpr double quick_normal() {
    const uint64_t bits = next();
    const double sum = double(bits & 0xffff) + double(bits >> 16 & 0xffff) +
                       double(bits >> 32 & 0xffff) + double(bits >> 48);
    return (sum * 0x1p-16 - 2) * 1.7320508075688772;
  }
  template <class T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[below(int64_t(choices.size()))];
  }
  template <class T>
  const T& pick(const std::vector<T>& choices) {
    return choices[size_t(below(int64_t(choices.size())))];
  }
  Random fork() {
    return Random(next());
  }  // an independent stream, so that draws do not shift others

 private:
  static constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;
  uint64_t state_;
};

}  // namespace keyhole
