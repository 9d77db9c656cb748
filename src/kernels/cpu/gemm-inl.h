// src/kernels/cpu/gemm-inl.h
// The one matrix product of the cpu kernels: a micro-kernel that keeps a rectangle of c in
// registers, broadcasts elements of a and streams vectors of b; and the loop that tiles c with it.
#if defined(KEYHOLE_CPU_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KEYHOLE_CPU_GEMM_INL_H_
#undef KEYHOLE_CPU_GEMM_INL_H_
#else
#define KEYHOLE_CPU_GEMM_INL_H_
#endif

#include <algorithm>

#include "base/int_math.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/simd.h"

KEYHOLE_SIMD_BEGIN

// Vectors across and rows down that fit in registers, beside the vectors of b and the operands from
// a: one on x86, which can multiply by an element in memory, one per row on NEON.
//   32 registers: 4 x 6 (+ 4 + 1), 3 x 8, 2 x 8, 1 x 8      16 registers: 2 x 6 (+ 2 + 1), 1 x 8
//   NEON:         4 x 5 (+ 4 + 5); 4 x 6 would spill three sums in every step
inline constexpr int kMostAcross = kVectorRegisters == 32 ? 4 : 2;
constexpr int most_down(int across) {
  return across < kMostAcross ? (kOperandsInMemory ? 8 : 6) : kOperandsInMemory ? 6 : 5;
}

// Every few steps the micro-kernel prefetches some lines of what is needed next: one per about 512
// multiply-adds, so that a tile of 64 x 64 at head_dim 64 prefetches as much as it reads and
// writes.
inline constexpr int64_t kStepsPerFetch = 16;
constexpr int lines_per_fetch(int64_t products_per_step) {
  return int(ceil_div(products_per_step * kStepsPerFetch, int64_t{512}));
}

template <int kDown, int kAcross, bool kTransposed, class T>
void gemm_registers(const Gemm<T>& g, int64_t row, int64_t col) {
  const Tag<T> d;
  using V = hn::Vec<Tag<T>>;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const T* a = g.a + (kTransposed ? row : row * g.a_stride);
  const T* b = g.b + col;
  T* c = g.c + row * g.c_stride + col;

  V sum[kDown][kAcross];
#pragma GCC unroll 8
  for (int i = 0; i < kDown; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kAcross; ++j) {
      sum[i][j] = g.accumulate ? hn::LoadU(d, c + i * g.c_stride + j * lanes) : hn::Zero(d);
    }
  }
  const int64_t a_stride = g.a_stride, b_stride = g.b_stride;
  const int64_t a_panel = kTransposed ? kPanel * a_stride : g.a_panel;
  const int64_t b_panel = g.b_panel != 0 ? g.b_panel : kPanel * b_stride;
  constexpr int kLines = lines_per_fetch(kDown * kAcross * int64_t(hn::MaxLanes(Tag<T>())));
  Prefetch& meanwhile = *g.meanwhile;
  for (int64_t left = g.depth; left > 0; left -= kPanel, a += a_panel, b += b_panel) {
    const int64_t steps = std::min(left, kPanel);
    const T *a_here = a, *b_here = b;
    for (int64_t x = 0; x < steps; ++x) {
      if (x % kStepsPerFetch == 0) [[unlikely]]
        meanwhile.template fetch<kLines>();
      V across[kAcross];
#pragma GCC unroll 4
      for (int j = 0; j < kAcross; ++j) across[j] = hn::LoadU(d, b_here + j * lanes);
#pragma GCC unroll 8
      for (int i = 0; i < kDown; ++i) {
        const V down = hn::Set(d, kTransposed ? a_here[i] : a_here[i * a_stride]);
#pragma GCC unroll 4
        for (int j = 0; j < kAcross; ++j) sum[i][j] = hn::MulAdd(down, across[j], sum[i][j]);
      }
      a_here += kTransposed ? a_stride : 1;
      b_here += b_stride;
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kDown; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kAcross; ++j) hn::StoreU(sum[i][j], d, c + i * g.c_stride + j * lanes);
  }
}

// The last rows: as many as are left. (Blocks of nearly equal height, 16 rows as 4 x 4 instead of 5
// + 5 + 5 + 1, were no faster.)
template <int kDown, int kAcross, bool kTransposed, class T>
HWY_INLINE void gemm_rows_left(const Gemm<T>& g, int64_t row, int64_t col, int64_t left) {
  if constexpr (kDown > 0) {
    if (left == kDown) return gemm_registers<kDown, kAcross, kTransposed>(g, row, col);
    gemm_rows_left<kDown - 1, kAcross, kTransposed>(g, row, col, left);
  }
}

template <int kAcross, bool kTransposed, class T>
void gemm_column(const Gemm<T>& g, int64_t col) {
  constexpr int kDown = most_down(kAcross);
  int64_t row = 0;
  for (; row + kDown <= g.rows; row += kDown) {
    gemm_registers<kDown, kAcross, kTransposed>(g, row, col);
  }
  gemm_rows_left<kDown - 1, kAcross, kTransposed>(g, row, col, g.rows - row);
}

template <bool kTransposed, class T>
void gemm_columns(const Gemm<T>& g) {
  const int64_t lanes = int64_t(hn::Lanes(Tag<T>()));
  const int64_t vectors = g.cols / lanes;
  int64_t v = 0;
  for (; v + kMostAcross <= vectors; v += kMostAcross) {
    gemm_column<kMostAcross, kTransposed>(g, v * lanes);
  }
  switch (vectors - v) {
    case 3:
      return gemm_column<std::min(3, kMostAcross), kTransposed>(g, v * lanes);
    case 2:
      return gemm_column<std::min(2, kMostAcross), kTransposed>(g, v * lanes);
    case 1:
      return gemm_column<1, kTransposed>(g, v * lanes);
  }
}

template <class T>
void gemm(const Gemm<T>& g) {
  g.a_transposed ? gemm_columns<true>(g) : gemm_columns<false>(g);
}

KEYHOLE_SIMD_END
#endif  // toggle
