// src/kernels/simple/forward_steps.cuh
// The steps of the forward kernel (forward.cuh has the outline), between registers and shared
// memory.
#pragma once

#include <algorithm>

#include "kernels/device/convert.cuh"
#include "kernels/device/pair_gradient.cuh"
#include "kernels/device/row_result.cuh"

namespace keyhole::simple {

using device::kVector;

// Threads are arranged in rows of 16, over the keys (or the columns of v):
//   scores   thread (y, x) has rows y, y + rows_of_threads, ... and keys x, x + 16, ...
//   outputs  128 threads (8 x 16) have 64 columns at a time: thread (y, x) has rows y, y + 8, ...
//            and columns 4x ... 4x + 3 of each 64. Wide heads have two such groups of threads,
//            which share the columns.
// Neighbouring rows and keys belong to neighbouring threads. With the pitches below, the lanes of a
// quarter warp read different banks.
template <int kTileQ, int kTileK, int kColumns>
struct ForwardConfig {
  static constexpr int tile_q = kTileQ, tile_k = kTileK;
  static constexpr int columns = kColumns;  // v_head_dim, rounded up
  static constexpr int groups = kColumns > 128 ? 2 : 1;
  static constexpr int threads = 128 * groups;
  static constexpr int rows_of_threads = threads / 16;
  static constexpr int score_rows = kTileQ / rows_of_threads;  // of a thread
  static constexpr int score_keys = kTileK / 16;
  static constexpr int out_rows = kTileQ / 8;
  static constexpr int out_units = kColumns / 64 / groups;  // of four columns

  static constexpr int chunk = 32;             // columns of q and k in shared memory
  static constexpr int pitch = chunk + 4;      // 16-byte reads of 8 neighbouring rows: all 32 banks
  static constexpr int p_pitch = kTileK + 16;  // two neighbouring rows of 16 floats: all 32 banks
  // Keys per chunk of v in shared memory: 16 KiB of them, or the whole tile (20 KiB for the widest
  // heads).
  static constexpr int value_keys = kColumns > 256 ? 8 : std::min(kTileK, 4096 / kColumns);

  // Registers per thread. An SM has 64 Ki of them, which limits how many CTAs share it.
  static constexpr int tile_outputs = kTileQ * kColumns;
  static constexpr int narrow_registers = tile_outputs > 4096    ? 168
                                          : tile_outputs == 4096 ? 128
                                                                 : 80;
  static constexpr int registers = kColumns > 256 ? 255 : kColumns > 128 ? 128 : narrow_registers;
  static constexpr int ctas_per_sm = 65536 / (threads * registers);

  static_assert(kTileK <= 64, "a row of a bitmap is one 64-bit word");
  static_assert(kColumns % (64 * groups) == 0, "threads have whole units of four columns");
  static_assert(kTileQ % rows_of_threads == 0 && kTileK % value_keys == 0);
};

template <class C>
struct alignas(16) ForwardShared {
  union {
    struct {
      float q[C::tile_q][C::pitch];
      float k[C::tile_k][C::pitch];
    };
    float v[C::value_keys][C::columns];
  };
  float p[C::tile_q][C::p_pitch];        // weights of one tile
  float max[C::tile_q], sum[C::tile_q];  // of the rows so far
  float shrink[C::tile_q];               // the factor that rescales their outputs so far
  device::RowFinish finish[C::tile_q];
  int is_bad[C::tile_q];  // the row has a value that is not finite
};

// Rows of q, k or v of one head in one residue class.
template <class T>
struct ClassRows {
  const T* first;
  int64_t step;   // elements from one row to the next
  int64_t count;  // rows
  int32_t cols;
  bool in_vectors;
};
template <class T>
__device__ ClassRows<T> class_rows(const device::DeviceTensor& tensor, int32_t batch, int32_t head,
                                   int64_t first, int64_t count, int32_t stride, int32_t cols) {
  return {tensor.row<T>(batch, head, first), stride * tensor.row_stride, count, cols,
          device::is_in_vectors<T>(tensor, cols)};
}

// Moves kRows x kCols elements from a tensor to shared memory, with all threads of a CTA. Up to 32
// neighbouring lanes share a row. Fetching and putting are separate, so that all loads are in
// flight before the first is awaited.
template <class T, int kRows, int kCols, int kThreads>
struct Block {
  static constexpr int per_row = kCols / kVector<T>;              // vectors
  static constexpr int lanes = per_row < 32 ? per_row : 32;       // that share a row
  static constexpr int across = (per_row + lanes - 1) / lanes;    // vectors of a lane in one row
  static constexpr int row_step = kThreads / lanes;               // rows side by side
  static constexpr int down = (kRows + row_step - 1) / row_step;  // rows of a lane
  static constexpr bool is_even = kRows % row_step == 0 && per_row % lanes == 0;
  uint4 raw[down][across];

  __device__ static int row(int i) { return int(threadIdx.x) / lanes + i * row_step; }
  __device__ static int col(int j) { return (int(threadIdx.x) % lanes + j * lanes) * kVector<T>; }

  // From (first_row, first_col) on; zeros past the ends.
  __device__ void fetch(const ClassRows<T>& from, int64_t first_row, int32_t first_col) {
    const int rows_left = int(min(from.count - first_row, int64_t{kRows}));
    const int cols_left = min(from.cols - first_col, kCols);
    int64_t begin = (first_row + row(0)) * from.step + first_col;
    // Keeps the compiler from computing every row's address before the tile loop: that would take
    // its registers.
    asm volatile("" : "+l"(begin));
    const T* at = from.first + begin;
    const auto fetch_with = [&](auto load) {
#pragma unroll
      for (int i = 0; i < down; ++i) {
        const int cols = row(i) < rows_left ? cols_left : 0;
#pragma unroll
        for (int j = 0; j < across; ++j) {
          raw[i][j] = load(at + i * row_step * from.step, col(j), cols);
        }
      }
    };
    if (from.in_vectors) {
      fetch_with(device::load_vector<T>);
    } else {
      fetch_with(device::load_singly<T>);
    }
  }

  template <int kPitch>
  __device__ void put(float (&to)[kRows][kPitch]) const {  // as fp32
#pragma unroll
    for (int i = 0; i < down; ++i) {
#pragma unroll
      for (int j = 0; j < across; ++j) {
        if (!is_even && (row(i) >= kRows || col(j) >= kCols)) continue;
        float values[kVector<T>];
        device::convert<T>(raw[i][j], values);
#pragma unroll
        for (int e = 0; e < kVector<T>; e += 4) {
          *reinterpret_cast<float4*>(&to[row(i)][col(j) + e]) =
              make_float4(values[e], values[e + 1], values[e + 2], values[e + 3]);
        }
      }
    }
  }
};

__device__ inline float4 read_four(const float* at) { return *reinterpret_cast<const float4*>(at); }

// score += q . k over the columns in shared memory.
template <class C>
__device__ void add_products(float (&score)[C::score_rows][C::score_keys],
                             const ForwardShared<C>& shared) {
  const int x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll 4
  for (int col = 0; col < C::chunk; col += 4) {
    float4 k[C::score_keys];
#pragma unroll
    for (int j = 0; j < C::score_keys; ++j) k[j] = read_four(&shared.k[x + 16 * j][col]);
#pragma unroll
    for (int i = 0; i < C::score_rows; ++i) {
      const float4 q = read_four(&shared.q[y + C::rows_of_threads * i][col]);
#pragma unroll
      for (int j = 0; j < C::score_keys; ++j) {
        score[i][j] += q.x * k[j].x;
        score[i][j] += q.y * k[j].y;
        score[i][j] += q.z * k[j].z;
        score[i][j] += q.w * k[j].w;
      }
    }
  }
}

// The running maxima and sums are in shared memory: they take no registers during the products.
template <class C>
__device__ void begin_softmax(ForwardShared<C>& shared) {
  if (int(threadIdx.x) >= C::tile_q) return;
  shared.max[threadIdx.x] = -INFINITY;
  shared.sum[threadIdx.x] = 0;
}

// Online softmax: base-2 scores in, weights to shared memory. The 16 threads of a row are
// neighbours in one warp; only they touch the row's maximum and sum.
template <class C>
__device__ void absorb(const float (&score)[C::score_rows][C::score_keys],
                       ForwardShared<C>& shared) {
  const int x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll
  for (int i = 0; i < C::score_rows; ++i) {
    const int row = y + C::rows_of_threads * i;
    const float before = shared.max[row];
    float top = before;
#pragma unroll
    for (int j = 0; j < C::score_keys; ++j) top = fmaxf(top, score[i][j]);
#pragma unroll
    for (int step = 8; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
    const float base = top == -INFINITY ? 0 : top;  // no pair attended yet: all weights are 0
    float sum = 0;
#pragma unroll
    for (int j = 0; j < C::score_keys; ++j) {
      const float weight = exp2f(score[i][j] - base);
      sum += weight;
      shared.p[row][x + 16 * j] = weight;
    }
#pragma unroll
    for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    __syncwarp();  // all have read the maximum
    if (x == 0) {
      const float shrink = exp2f(before - base);
      shared.max[row] = top;
      shared.sum[row] = shared.sum[row] * shrink + sum;
      shared.shrink[row] = shrink;
    }
  }
}

// Turns q . k into a base-2 score, -inf where a pair does not attend. By selection, so that a NaN
// there has no effect.
template <class C>
__device__ void bend_and_mask(float (&score)[C::score_rows][C::score_keys],
                              const device::CarefulRule& rule, const uint64_t* bitmap) {
  const int x = threadIdx.x % 16, y = threadIdx.x / 16;
  if (rule.is_bent()) {  // one branch around all of them
#pragma unroll
    for (int i = 0; i < C::score_rows; ++i) {
#pragma unroll
      for (int j = 0; j < C::score_keys; ++j) score[i][j] = rule.bend(score[i][j]);
    }
  }
#pragma unroll
  for (int i = 0; i < C::score_rows; ++i) {
#pragma unroll
    for (int j = 0; j < C::score_keys; ++j) score[i][j] = rule.score(score[i][j]);
  }
  if (bitmap == nullptr) return;
#pragma unroll
  for (int i = 0; i < C::score_rows; ++i) {
    const uint64_t bits = bitmap[y + C::rows_of_threads * i] >> x;
#pragma unroll
    for (int j = 0; j < C::score_keys; ++j) {
      if (!(bits >> (16 * j) & 1)) score[i][j] = -INFINITY;
    }
  }
}

// The outputs of a thread, [row][unit][column], not yet divided by the sums.
template <class C>
struct Outputs {
  float at[C::out_rows][C::out_units][4] = {};

  __device__ static int row(int i) { return int(threadIdx.x) % 128 / 16 + 8 * i; }
  __device__ static int col(int unit) {
    return (int(threadIdx.x) / 128 * C::out_units + unit) * 64 + int(threadIdx.x) % 16 * 4;
  }

  __device__ void multiply_row(int i, float factor) {
#pragma unroll
    for (int u = 0; u < C::out_units; ++u) {
#pragma unroll
      for (int e = 0; e < 4; ++e) at[i][u][e] *= factor;
    }
  }
  // Adds factor * (a row in memory).
  __device__ void add_row(int i, float factor, const float* from, int32_t cols) {
#pragma unroll
    for (int u = 0; u < C::out_units; ++u) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (col(u) + e < cols) at[i][u][e] += factor * from[col(u) + e];
      }
    }
  }
  __device__ bool row_is_finite(int i) const {
    bool is_finite = true;
#pragma unroll
    for (int u = 0; u < C::out_units; ++u) {
#pragma unroll
      for (int e = 0; e < 4; ++e) is_finite = is_finite && device::is_finite(at[i][u][e]);
    }
    return is_finite;
  }
  template <class Element>
  __device__ void store_row(int i, Element* to, int32_t cols, bool in_vectors) const {
#pragma unroll
    for (int u = 0; u < C::out_units; ++u) {
      device::store_four(to, col(u), cols, at[i][u], in_vectors);
    }
  }

  // out += p . v for the keys in shared memory, of which the first is key `first` of the tile.
  __device__ void add_values(const ForwardShared<C>& shared, int first) {
#pragma unroll 2
    for (int key = 0; key < C::value_keys; key += 4) {
      float p[C::out_rows][4];
#pragma unroll
      for (int i = 0; i < C::out_rows; ++i) {
        const float4 four = read_four(&shared.p[row(i)][first + key]);
        p[i][0] = four.x, p[i][1] = four.y, p[i][2] = four.z, p[i][3] = four.w;
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int u = 0; u < C::out_units; ++u) {
          const float4 v = read_four(&shared.v[key + n][col(u)]);
#pragma unroll
          for (int i = 0; i < C::out_rows; ++i) {
            at[i][u][0] += p[i][n] * v.x;
            at[i][u][1] += p[i][n] * v.y;
            at[i][u][2] += p[i][n] * v.z;
            at[i][u][3] += p[i][n] * v.w;
          }
        }
      }
    }
  }
};

}  // namespace keyhole::simple
