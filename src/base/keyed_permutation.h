// src/base/keyed_permutation.h
// A permutation of [0, size) chosen by two numbers and computed one element at a time: forward(i)
// is where i goes, inverse(x) is where x came from. Integer arithmetic only, so every machine gets
// the same.
//
// Definition. mix is the finaliser of splitmix64:
//   mix(z):  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9
//            z = (z ^ z >> 27) * 0x94d049bb133111eb;  result z ^ z >> 31
// key = mix(mix(seed + G) + stream + G), with G = 0x9e3779b97f4a7c15 and arithmetic modulo 2^64.
// Round r = 0, 1, ... of a balanced Feistel network over 2 * half_bits bits, the smallest such
// domain with at least `size` elements, takes (left, right) to
//   (right, left ^ (mix(right + key + (r + 1) * G) mod 2^half_bits)),
// where left is the upper half of the number. There are 4 rounds; 12 when half_bits is at most 4,
// where 4 would visibly favour some pairs of elements. Results outside [0, size) go through the
// network again until one lies inside (cycle walking); the domain is below 4 * size, so that is
// soon.
#pragma once

#include <cstdint>

#include "base/check.h"

namespace keyhole {

class KeyedPermutation {
 public:
  KeyedPermutation(uint64_t size, uint64_t seed, uint64_t stream)
      : size_(size), key_(mix(mix(seed + kGolden) + stream + kGolden)) {
    KEYHOLE_ASSERT(size > 0 && size <= uint64_t{1} << 62, "a permutation of ", size, " elements");
    while (uint64_t{1} << 2 * half_bits_ < size) ++half_bits_;
    mask_ = (uint64_t{1} << half_bits_) - 1;
    rounds_ = half_bits_ <= 4 ? 12 : 4;
  }

  uint64_t forward(uint64_t element) const {
    do element = encrypt(element);
    while (element >= size_);
    return element;
  }
  uint64_t inverse(uint64_t element) const {
    do element = decrypt(element);
    while (element >= size_);
    return element;
  }
  uint64_t size() const { return size_; }

 private:
  static constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;

  static constexpr uint64_t mix(uint64_t z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  uint64_t round(uint64_t r, uint64_t right) const {
    return mix(right + key_ + (r + 1) * kGolden) & mask_;
  }
  uint64_t encrypt(uint64_t x) const {
    uint64_t left = x >> half_bits_, right = x & mask_;
    for (uint64_t r = 0; r < rounds_; ++r) {
      const uint64_t next = left ^ round(r, right);
      left = right;
      right = next;
    }
    return left << half_bits_ | right;
  }
  uint64_t decrypt(uint64_t x) const {
    uint64_t left = x >> half_bits_, right = x & mask_;
    for (uint64_t r = rounds_; r-- > 0;) {
      const uint64_t previous = right ^ round(r, left);
      right = left;
      left = previous;
    }
    return left << half_bits_ | right;
  }

  uint64_t size_, key_, mask_ = 0, rounds_ = 0;
  int half_bits_ = 0;
};

}  // namespace keyhole
