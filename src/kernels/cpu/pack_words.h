// src/kernels/cpu/pack_words.h
// Packs 16-bit tensor rows as the tile products read them (amx.h): padded with zeros to whole
// tiles, two numbers in a word. Nothing is converted.
#pragma once

#include <algorithm>
#include <array>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/pack.h"

namespace keyhole::cpu {

template <class Storage>
const uint16_t* bits_of(const Storage* numbers) {
  static_assert(sizeof(Storage) == sizeof(uint16_t));
  return reinterpret_cast<const uint16_t*>(numbers);
}

// dst[rows][padded_cols] = src; columns from cols on are 0.
template <class Storage>
void copy_rows(const Storage* src, int64_t src_stride, int64_t rows, int64_t cols, Storage* dst,
               int64_t padded_cols) {
  for (int64_t r = 0; r < rows; ++r, src += src_stride, dst += padded_cols) {
    std::copy_n(src, cols, dst);
    std::fill_n(dst + cols, padded_cols - cols, Storage{});
  }
}

// The kPanel packed rows from `begin` on, copied: to[kPanel][padded_cols]. Rows that do not exist
// are 0.
template <class Storage>
void copy_panel(const RowMap& map, Rows<const Storage> from, int64_t cols, int64_t begin,
                Storage* to, int64_t padded_cols) {
  int64_t done = 0;
  map.for_each_stretch(begin, kPanel, [&](int64_t offset, int64_t source, int64_t count) {
    std::fill(to + done * padded_cols, to + offset * padded_cols, Storage{});
    copy_rows(from[source], from.stride * map.stride, count, cols, to + offset * padded_cols,
              padded_cols);
    done = offset + count;
  });
  std::fill(to + done * padded_cols, to + kPanel * padded_cols, Storage{});
}

// The kPanel packed rows from `begin` on as columns: to[padded_depth(cols) / 2][kPanel] words of
// two neighbouring columns.
template <class Storage>
void pack_word_columns(const Primitives<Storage>& simd, const RowMap& map, Rows<const Storage> from,
                       int64_t cols, int64_t begin, uint32_t* to) {
  std::array<Storage, size_t(kPanel * amx::kDepth)> block;
  for (int64_t col = 0; col < cols; col += amx::kDepth, to += amx::kWords * kPanel) {
    copy_panel(map, {from.data + col, from.stride}, std::min(cols - col, amx::kDepth), begin,
               block.data(), amx::kDepth);
    simd.load_word_columns(bits_of(block.data()), amx::kDepth, kPanel, amx::kWords, to, kPanel);
  }
}

// The same rows as rows: to[kPanel / 2][padded_cols] words of two neighbouring rows.
template <class Storage>
void pack_word_rows(const Primitives<Storage>& simd, const RowMap& map, Rows<const Storage> from,
                    int64_t cols, int64_t begin, uint32_t* to, int64_t padded_cols) {
  std::array<Storage, size_t(kPanel * kPanel)> block;
  for (int64_t col = 0; col < padded_cols; col += kPanel) {
    const int64_t here = std::min(padded_cols - col, kPanel);
    copy_panel(map, {from.data + col, from.stride}, std::min(cols - col, here), begin, block.data(),
               here);
    const uint16_t* rows = bits_of(block.data());
    for (int64_t r = 0; r < kPanel; r += 2) {
      simd.zip_rows(rows + r * here, rows + (r + 1) * here, here, to + r / 2 * padded_cols + col);
    }
  }
}

// The numbers of a copied panel from[kPanel][stride] as columns: to[cols][kPanel]. cols: a multiple
// of 16, at most stride.
template <class Storage>
void transpose_panel(const Primitives<Storage>& simd, const Storage* from, int64_t stride,
                     int64_t cols, Storage* to) {
  alignas(kAlignment) std::array<uint32_t, size_t(kPanel / 2 * kPanel)> words;
  for (int64_t col = 0; col < cols; col += kPanel) {
    const int64_t here = std::min(cols - col, kPanel);
    for (int64_t r = 0; r < kPanel; r += 2) {
      const uint16_t* row = bits_of(from) + r * stride + col;
      simd.zip_rows(row, row + stride, here, words.data() + r / 2 * here);
    }
    simd.load_word_columns(reinterpret_cast<const uint16_t*>(words.data()), 2 * here, kPanel / 2,
                           here, reinterpret_cast<uint32_t*>(to + col * kPanel), kPanel / 2);
  }
}

}  // namespace keyhole::cpu
