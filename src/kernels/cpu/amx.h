// src/kernels/cpu/amx.h
// Matrix products of 16-bit numbers on Intel's tile registers (AMX): sums in fp32, 16 x 16 at a
// time. Compiled on x86_64 with Linux, where the system grants the registers on request; used where
// the processor has them.
//
// A matrix b on the right is stored as words: rows 2 i and 2 i + 1 of a column share one 32-bit
// word of row i. Rows and columns of all matrices are padded to whole tiles.
#pragma once

#include <cstdint>

#include "base/int_math.h"
#include "kernels/cpu/config.h"
#include "keyhole/tensor.h"

namespace keyhole::cpu::amx {

inline constexpr int64_t kRows = 16;   // of a tile
inline constexpr int64_t kCols = 16;   // of a tile of sums, and words in a row of b
inline constexpr int64_t kDepth = 32;  // 16-bit numbers that one instruction multiplies per sum
inline constexpr int64_t kWords = kDepth / 2;

inline int64_t padded_rows(int64_t rows) { return round_up(rows, kRows); }
inline int64_t padded_depth(int64_t depth) { return round_up(depth, kDepth); }

// Whether this processor multiplies this type, and the system lets us.
bool multiplies(DType dtype);

// While it lives, the thread may call multiply.
class Tiles {
 public:
  Tiles();
  ~Tiles();
  Tiles(const Tiles&) = delete;
};

// c[rows][cols] (+)= a[rows][depth] * b[depth][cols].
// rows and cols are multiples of 16, depth of 32. Strides are in elements, of b in words.
struct Product {
  int64_t rows, cols, depth;
  const uint16_t* a;
  int64_t a_stride;
  const uint32_t* b;  // [depth / 2][cols]
  int64_t b_stride;
  int64_t b_panel = 0;  // words from the first of kPanel rows to the next kPanel; 0: by stride
  float* c;
  int64_t c_stride;
  bool accumulate = false;
};
void multiply(DType dtype, const Product& product);

}  // namespace keyhole::cpu::amx
