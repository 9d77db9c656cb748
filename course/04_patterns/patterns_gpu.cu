// course/04_patterns/patterns_gpu.cu [LENGTH]
// Two kernels for any pattern. One follows CSR rows, a warp a query; one follows lists of tiles, a
// thread a query. Both get the same pairs, near and scattered: what they read, and their time.
#include "common/gpu.h"
#include "definition.h"

using course::Csr, course::GpuArray, course::Values;

namespace {

constexpr int kHeads = 8, kHeadDim = 64;
constexpr int kTileQ = 64, kTileK = 32;  // a row of a bitmap is one 32-bit word
constexpr float kScale = 0.125f;         // 1 / sqrt(64)

// q, k, v, out: [head][length][kHeadDim]. A warp has a query, and a lane the numbers `lane` and
// `lane` + 32 of every row. Each key is read again for each query that lists it.
__global__ void follow_csr(const float* q, const float* k, const float* v, const int* offsets,
                           const int* keys, float* out, int length) {
  const int query = int(blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const int lane = int(threadIdx.x) % 32, first = int(blockIdx.y) * length * kHeadDim + lane;
  const int mine = first + query * kHeadDim;
  const float q_low = q[mine], q_high = q[mine + 32];
  float largest = -INFINITY, sum = 0, low = 0, high = 0;
  for (int e = offsets[query]; e < offsets[query + 1]; ++e) {  // the same keys for all lanes
    const int row = first + keys[e] * kHeadDim;
    float score = kScale * (q_low * k[row] + q_high * k[row + 32]);
    for (int step = 16; step > 0; step /= 2) score += __shfl_xor_sync(0xffffffffu, score, step);
    const float before = largest;
    largest = fmaxf(largest, score);
    const float rescale = expf(before - largest), weight = expf(score - largest);
    sum = sum * rescale + weight;
    low = low * rescale + weight * v[row];
    high = high * rescale + weight * v[row + 32];
  }
  out[mine] = sum > 0 ? low / sum : 0;  // a query without keys gets zeros
  out[mine + 32] = sum > 0 ? high / sum : 0;
}

// A CTA of 64 threads has 64 queries, one a thread. It copies a tile of 32 keys to shared memory
// once for all of them. bits[tile][row]: which of the 32 keys the query of this row sees.
__global__ void __launch_bounds__(kTileQ)
    follow_tiles(const float* q, const float* k, const float* v, const int* offsets,
                 const int* tiles, const unsigned* bits, float* out, int length) {
  __shared__ float keys[kTileK][kHeadDim], values[kTileK][kHeadDim];
  const int thread = int(threadIdx.x), q_tile = int(blockIdx.x);
  const size_t head = size_t{blockIdx.y} * length * kHeadDim;
  const size_t my_row = head + size_t(q_tile * kTileQ + thread) * kHeadDim;
  float mine[kHeadDim], total[kHeadDim] = {}, largest = -INFINITY, sum = 0;
#pragma unroll
  for (int d = 0; d < kHeadDim; ++d) mine[d] = q[my_row + d];
  for (int e = offsets[q_tile]; e < offsets[q_tile + 1]; ++e) {
    const size_t first = head + size_t(tiles[e]) * kTileK * kHeadDim;
    __syncthreads();  // all have used the tile before
    for (int i = thread; i < kTileK * kHeadDim; i += kTileQ) {
      keys[i / kHeadDim][i % kHeadDim] = k[first + i];
      values[i / kHeadDim][i % kHeadDim] = v[first + i];
    }
    __syncthreads();
    const unsigned seen = bits[e * kTileQ + thread];
    for (int key = 0; key < kTileK; ++key) {
      float score = 0;
#pragma unroll
      for (int d = 0; d < kHeadDim; ++d) score += mine[d] * keys[key][d];
      if (!(seen >> key & 1)) continue;  // not seen: its score was computed for nothing
      score *= kScale;
      if (score > largest) {
        const float rescale = expf(largest - score);
        largest = score;
        sum *= rescale;
#pragma unroll
        for (int d = 0; d < kHeadDim; ++d) total[d] *= rescale;
      }
      const float weight = expf(score - largest);
      sum += weight;
#pragma unroll
      for (int d = 0; d < kHeadDim; ++d) total[d] += weight * values[key][d];
    }
  }
#pragma unroll
  for (int d = 0; d < kHeadDim; ++d) out[my_row + d] = sum > 0 ? total[d] / sum : 0;
}

struct Tiles {
  std::vector<int> offsets = {0}, tiles;
  std::vector<unsigned> bits;
};

Tiles tiles_of(const Csr& rows, int length) {
  Tiles made;
  for (int q_tile = 0; q_tile < length / kTileQ; ++q_tile) {
    std::vector<unsigned> drawn(length / kTileK * kTileQ);  // [key tile][row]
    for (int row = 0; row < kTileQ; ++row) {
      const int query = q_tile * kTileQ + row;
      for (int e = rows.offsets[query]; e < rows.offsets[query + 1]; ++e) {
        drawn[rows.keys[e] / kTileK * kTileQ + row] |= 1u << rows.keys[e] % kTileK;
      }
    }
    for (int tile = 0; tile < length / kTileK; ++tile) {
      const auto first = drawn.begin() + tile * kTileQ;
      if (std::all_of(first, first + kTileQ, [](unsigned word) { return word == 0; })) continue;
      made.tiles.push_back(tile);
      made.bits.insert(made.bits.end(), first, first + kTileQ);
    }
    made.offsets.push_back(static_cast<int>(made.tiles.size()));
  }
  return made;
}

// Checked is the last head: it is wrong, too, where a kernel mixes up heads.
Values last_head(const Values& all) { return Values(all.end() - all.size() / kHeads, all.end()); }

}  // namespace

int main(int argc, char** argv) {
  const int length = argc > 1 ? std::max(2, std::atoi(argv[1]) / kTileQ) * kTileQ : 2048;
  course::need_gpu();
  const Values q = course::random_values(kHeads * length * kHeadDim, 1);
  const Values k = course::random_values(q.size(), 2), v = course::random_values(q.size(), 3);
  const course::Head checked{length, length, kHeadDim, last_head(q), last_head(k), last_head(v)};
  const GpuArray<float> gpu_q(q), gpu_k(k), gpu_v(v);
  GpuArray<float> out(q.size());
  const dim3 csr_grid(length / 4, kHeads), tile_grid(length / kTileQ, kHeads);
  for (const keyhole::Pattern& pattern : {keyhole::window(64, 63), keyhole::random(1, 128, 7)}) {
    const Csr rows = course::csr_of(pattern, length);
    const Tiles tiles = tiles_of(rows, length);
    const GpuArray<int> offsets(rows.offsets), keys(rows.keys);
    const GpuArray<int> tile_offsets(tiles.offsets), tile_keys(tiles.tiles);
    const GpuArray<unsigned> bits(tiles.bits);
    const Values expected = course::by_definition(checked, pattern);
    std::printf("%s, %zu pairs a head\n%-10s %10s %10s %14s\n", pattern.text().c_str(),
                rows.keys.size(), "kernel", "MiB_read", "ms", "largest_error");
    const auto report = [&](const char* name, std::size_t rows_read, auto&& launch) {
      out.poison();
      const double ms = course::gpu_milliseconds(launch);
      std::printf("%-10s %10.1f %10.3f %14.1e\n", name,
                  static_cast<double>(rows_read) * kHeads * 2 * kHeadDim * 4 / 1048576, ms,
                  course::largest_difference(last_head(out.to_host()), expected));
    };
    report("csr", rows.keys.size(), [&] {  // a row of k and of v for every pair
      follow_csr<<<csr_grid, 128>>>(gpu_q.data(), gpu_k.data(), gpu_v.data(), offsets.data(),
                                    keys.data(), out.data(), length);
    });
    report("tiles", tiles.tiles.size() * kTileK, [&] {  // 32 rows for every tile
      follow_tiles<<<tile_grid, kTileQ>>>(gpu_q.data(), gpu_k.data(), gpu_v.data(),
                                          tile_offsets.data(), tile_keys.data(), bits.data(),
                                          out.data(), length);
    });
    std::printf("\n");
  }
}
