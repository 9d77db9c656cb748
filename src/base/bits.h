// src/base/bits.h
// A bitmap of tile_q x tile_k pairs: one bit per pair, rows of 64-bit words; bit c % 64 of word c /
// 64 is column c. Host and device read the same layout. Below is the layout that tensor-core
// kernels read instead. constexpr functions may be called on a GPU.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace keyhole {

constexpr int32_t words_per_row(int32_t columns) { return (columns + 63) / 64; }

// Sets the bits [begin, end) of one row.
inline void set_bits(uint64_t* row, int64_t begin, int64_t end) {
  while (begin < end) {
    const int64_t word = begin >> 6, first = begin & 63;
    const int64_t count = end - begin < 64 - first ? end - begin : 64 - first;
    const uint64_t ones = count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
    row[word] |= ones << first;
    begin += count;
  }
}
inline bool get_bit(const uint64_t* row, int64_t column) {
  return row[column >> 6] >> (column & 63) & 1;
}

// The mma layout (docs/gpu.md has the picture): 32-bit words per lane for 16 rows, and per bitmap.
constexpr int32_t mma_lane_words(int32_t cols) { return (cols + 63) / 64; }
constexpr int64_t mma_words(int32_t rows, int32_t cols) {
  return int64_t{rows / 16} * 32 * mma_lane_words(cols);
}

// The position of the bit of (row, col) in the mma layout of a tile of `cols` columns.
struct MmaBit {
  int32_t word, bit;
};
constexpr MmaBit mma_bit(int32_t row, int32_t col, int32_t cols) {
  const int32_t lane = row % 8 * 4 + col % 8 / 2;
  const int32_t word = (row / 16 * 32 + lane) * mma_lane_words(cols) + col / 64;
  const int32_t element = row % 16 / 8 * 2 + col % 2;
  return {word, col % 64 / 8 * 4 + element};
}

// An owning bitmap of rows x columns, initially all clear.
class BitRows {
 public:
  BitRows(int32_t rows, int32_t columns)
      : rows_(rows),
        columns_(columns),
        words_(words_per_row(columns)),
        data_(size_t(rows) * size_t(words_)) {}

  int32_t rows() const { return rows_; }
  int32_t columns() const { return columns_; }
  int32_t words() const { return words_; }
  uint64_t* row(int32_t r) { return data_.data() + size_t(r) * size_t(words_); }
  const uint64_t* row(int32_t r) const { return data_.data() + size_t(r) * size_t(words_); }
  std::vector<uint64_t>& data() { return data_; }
  const std::vector<uint64_t>& data() const { return data_; }
  void clear() { data_.assign(data_.size(), 0); }
  int64_t count() const {
    int64_t bits = 0;
    for (const uint64_t word : data_) bits += std::popcount(word);
    return bits;
  }

 private:
  int32_t rows_, columns_, words_;
  std::vector<uint64_t> data_;
};

}  // namespace keyhole
