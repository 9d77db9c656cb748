// src/base/hash.h
// FNV-1a, 64 bits: identifies arrays in printed patterns and guards plan files. Not for hostile
// input. Numbers are hashed as eight little-endian bytes, so that every machine prints the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace keyhole {

class Fnv1a64 {
 public:
  void add_bytes(const void* data, size_t size) {
    const auto* bytes = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < size; ++i) add_byte(bytes[i]);
  }
  void add(uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8)
      add_byte(static_cast<unsigned char>(value >> shift));
  }
  void add(std::span<const int64_t> values) {
    for (const int64_t value : values) add(uint64_t(value));
  }
  uint64_t value() const { return state_; }

 private:
  void add_byte(unsigned char byte) { state_ = (state_ ^ byte) * 0x100000001b3u; }

  uint64_t state_ = 0xcbf29ce484222325u;
};

inline uint64_t fnv1a64(const void* data, size_t size) {
  Fnv1a64 hash;
  hash.add_bytes(data, size);
  return hash.value();
}

// Sixteen hexadecimal digits.
inline std::string to_hex(uint64_t value) {
  std::string text(16, '0');
  for (int i = 15; i >= 0; --i, value >>= 4) text[size_t(i)] = "0123456789abcdef"[value & 15];
  return text;
}

}  // namespace keyhole
