// src/kernels/sm80/backward_tiles.cuh
// What both backward kernels share: tiles in shared memory, how they are loaded into matrix
// fragments, and the products.
#pragma once

#include "kernels/device/key_rows.cuh"
#include "kernels/device/math.cuh"
#include "kernels/mma/ptx.cuh"

namespace keyhole::sm80 {

using namespace mma;  // NOLINT: instructions, in the words of this backend

using device::has_nonfinite;
using device::rows_left;
using device::store_vector;
using device::TileRows;

// A row of kColumns 16-bit elements is kColumns / 8 chunks of 16 bytes. The swizzle permutes the
// chunks of each `group`, differently in neighbouring rows. The same chunk of 8 rows is then in 8
// different sets of 4 banks, and ldmatrix reads it without conflicts.
template <int kColumns>
struct Swizzled {
  static constexpr int chunks = kColumns / 8;
  static constexpr int group = chunks % 8 == 0 ? 8 : chunks % 4 == 0 ? 4 : 2;
  static constexpr int row_bytes = 2 * kColumns;
  static_assert(kColumns % 16 == 0);

  static __device__ __forceinline__ uint32_t offset(uint32_t row, uint32_t chunk) {
    return row * row_bytes + (chunk ^ (row / (8 / group) % group)) * 16;
  }
};

// The address a lane gives to ldmatrix. The four 8x8 matrices of a 16x16 block of a tile are taken
//   by rows     0 2     as the left operand [row][depth], or, transposed, the right one
//               1 3     [depth][column]
//   by columns  0 1     as the right operand [column][depth], or, transposed, the left one
//               2 3     [depth][row]
template <int kColumns>
class Pieces {
  using Layout = Swizzled<kColumns>;

 public:
  static __device__ __forceinline__ Pieces by_rows(uint32_t smem, int row, int chunk, int lane) {
    return Pieces(smem + Layout::offset(row + lane % 16, chunk + lane / 16));
  }
  static __device__ __forceinline__ Pieces by_columns(uint32_t smem, int row, int chunk, int lane) {
    return Pieces(smem + Layout::offset(row + lane % 8 + lane / 16 * 8, chunk + lane / 8 % 2));
  }
  // The address of the block `rows` (a multiple of 8) and `chunks` further. `chunks` is even and
  // has no bit in common with the chunk given above, so nothing carries.
  __device__ __forceinline__ uint32_t at(int rows, int chunks) const {
    constexpr int kGroup = Layout::group;
    return (first_ ^ uint32_t(chunks % kGroup * 16)) +
           uint32_t(chunks / kGroup * kGroup * 16 + rows * Layout::row_bytes);
  }

 private:
  __device__ __forceinline__ explicit Pieces(uint32_t first) : first_(first) {}
  uint32_t first_;
};

// A thread's part of a copy: chunks of 16 bytes; neighbouring threads take neighbouring chunks. The
// first one is at `row`, `chunk`; the others are `down` rows and `across` chunks further, with the
// same swizzle.
template <int kColumns, int kThreads>
struct ChunkShare {
  using Layout = Swizzled<kColumns>;
  static constexpr int across = Layout::group, down = kThreads / across;
  static_assert(down % 8 == 0, "else a thread's chunks would be swizzled differently in its rows");
  const int row, chunk;
  __device__ __forceinline__ explicit ChunkShare(uint32_t thread)
      : row(int(thread / across)), chunk(int(thread % across)) {}

  // visit(r, c, offset): the chunk of row + r, chunk + c is at `offset` in shared memory
  template <int kRows, class Visit>
  __device__ __forceinline__ void for_each(Visit visit) const {
    const uint32_t first = Layout::offset(row, chunk);
#pragma unroll
    for (int r = 0; r < kRows; r += down) {
      if (kRows % down != 0 && row + r >= kRows) break;
#pragma unroll
      for (int c = 0; c < Layout::chunks; c += across) {
        visit(r, c, first + uint32_t(r * Layout::row_bytes + c * 16));
      }
    }
  }
};

// Starts to copy a tile to shared memory; zeros where there are no rows or columns.
// first: address of this thread's first chunk
template <int kRows, int kColumns, int kThreads, class T>
__device__ __forceinline__ void copy_share(uint32_t smem, const T* first, int64_t step, int count,
                                           int columns, uint32_t thread) {
  const ChunkShare<kColumns, kThreads> share(thread);
  const int rows_below = count - share.row, columns_beyond = columns - share.chunk * 8;
  share.template for_each<kRows>([&](int r, int c, uint32_t offset) {
    copy_async_or_zeros(smem + offset, first + r * step + c * 8,
                        r < rows_below && c * 8 < columns_beyond);
  });
}
template <int kColumns, int kThreads, class T>
__device__ __forceinline__ const T* first_chunk(const T* first, int64_t step) {
  const ChunkShare<kColumns, kThreads> share(threadIdx.x);
  return fixed_address(first + share.row * step + share.chunk * 8);
}
template <int kRows, int kColumns, int kThreads, class T>
__device__ __forceinline__ void copy_tile(uint32_t smem, const TileRows<const T>& rows) {
  copy_share<kRows, kColumns, kThreads>(smem,
                                        first_chunk<kColumns, kThreads>(rows.first, rows.step),
                                        rows.step, rows.count, rows.columns, threadIdx.x);
}

// Writes a tile from shared memory; true when a value of it is not finite.
template <int kRows, int kColumns, int kThreads, class T>
__device__ __forceinline__ bool store_tile(uint32_t smem, const TileRows<T>& rows) {
  const ChunkShare<kColumns, kThreads> share(threadIdx.x);
  T* first = rows.first + share.row * rows.step + share.chunk * 8;
  bool found = false;
  share.template for_each<kRows>([&](int r, int c, uint32_t offset) {
    if (share.row + r >= rows.count || (share.chunk + c) * 8 >= rows.columns) return;
    const uint4 eight = load_shared_vector(smem + offset);
    store_vector(first + r * rows.step + c * 8, eight);
    found = found || has_nonfinite<T>(eight.x) || has_nonfinite<T>(eight.y) ||
            has_nonfinite<T>(eight.z) || has_nonfinite<T>(eight.w);
  });
  return found;
}

// sum (+)= left . right, kDepth terms, 16 at a time. sum[m][n] are the 16x8 blocks of a warp.
//   load_left(to, d, m)   16x16 of the left operand: rows 16 m, terms 16 d
//   load_right(to, d, n)  16x16 of the right one: terms 16 d, columns 16 n
//   meanwhile(i)          called after each i-th 16 columns: work for the other units
// Fragments are loaded ahead: the left ones by one step, the right ones by kAhead.
enum class Sum { begin, go_on };
template <class T, int kDepth, Sum kSum, int kM, int kN, class Left, class Right, class Meanwhile>
__device__ __forceinline__ void multiply(float (&sum)[kM][kN][4], Left load_left, Right load_right,
                                         Meanwhile meanwhile) {
  constexpr int kSteps = kDepth / 16, kPairs = kN / 2, kTotal = kSteps * kPairs;
  constexpr int kWanted = kM == 1 ? 3 : 2, kAhead = kWanted < kTotal ? kWanted : kTotal;
  static_assert(kDepth % 16 == 0 && kN % 2 == 0);
  uint32_t left[2][kM][4], right[kAhead + 1][4];
#pragma unroll
  for (int m = 0; m < kM; ++m) load_left(left[0][m], 0, m);
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load_right(right[i], i / kPairs, i % kPairs);
#pragma unroll
  for (int i = 0; i < kTotal; ++i) {
    const int d = i / kPairs, n = i % kPairs;
    if (n == 0 && d + 1 < kSteps) {
#pragma unroll
      for (int m = 0; m < kM; ++m) load_left(left[(d + 1) % 2][m], d + 1, m);
    }
    if (i + kAhead < kTotal) {
      load_right(right[(i + kAhead) % (kAhead + 1)], (i + kAhead) / kPairs, (i + kAhead) % kPairs);
    }
    const uint32_t(&b)[4] = right[i % (kAhead + 1)];
#pragma unroll
    for (int block = 0; block < 2; ++block) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        float(&c)[4] = sum[m][2 * n + block];
        if (kSum == Sum::begin && d == 0) {
          Element<T>::multiply(c, left[d % 2][m], b[2 * block], b[2 * block + 1]);
        } else {
          Element<T>::multiply_add(c, left[d % 2][m], b[2 * block], b[2 * block + 1]);
        }
      }
    }
    meanwhile(i);
  }
}
struct Nothing {
  __device__ __forceinline__ void operator()(int) const {}
};

// The blocks of a product, packed as the left operand of the next one: terms 16 d of its rows 16 m.
template <int kM, int kN>
using Packed = uint32_t[kM][kN][2];  // [..][0]: elements 0, 1 of a block; [..][1]: elements 2, 3
template <int kM, int kN>
__device__ __forceinline__ void left_of(uint32_t (&to)[4], const Packed<kM, kN>& product, int d,
                                        int m) {
  to[0] = product[m][2 * d][0];
  to[1] = product[m][2 * d][1];
  to[2] = product[m][2 * d + 1][0];
  to[3] = product[m][2 * d + 1][1];
}
template <class T, int kM, int kN>
__device__ __forceinline__ void pack(const float (&from)[kM][kN][4], Packed<kM, kN>& to) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      to[m][n][0] = Element<T>::pack(from[m][n][0], from[m][n][1]);
      to[m][n][1] = Element<T>::pack(from[m][n][2], from[m][n][3]);
    }
  }
}

// No softcap here: the `simple` backend handles those calls.
using Rule = SoftmaxRule<device::FastMath, Bend::none>;

}  // namespace keyhole::sm80
