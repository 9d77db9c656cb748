// src/kernels/simple/index_loss_backward.cu
// The gradients of the index loss, in three launches for each chunk of queries:
//
//   by pair    ds, the gradient of score / k_scale, and a bit per index head: q . k > 0
//   by query   u[j] = sum over keys of ds * bit * k;  dq[j] = w[j] * u[j],  dw[j] = q[j] . u[j]
//   by key     dk = sum over queries and heads of ds * bit * w[j] * q[j]
//
// Products are computed once, by the first. A number is added up by one thread, whose order does
// not depend on when it runs: the same bits every time.
#include <algorithm>
#include <utility>

#include "base/int_math.h"
#include "kernels/device/convert.cuh"
#include "kernels/device/grid_loop.cuh"
#include "kernels/device/launch.h"
#include "kernels/simple/index_loss.cuh"
#include "kernels/simple/index_loss.h"

namespace keyhole::simple {

using device::kMostLossBytes, device::RowChunks, device::chunk_bits_bytes, device::row_chunks,
    device::draw_chunk;

namespace {

constexpr int32_t kTileColumns = 64;  // of dq and dk, computed at a time
constexpr int32_t kEntries = 32;      // of dk, computed by a CTA: those of a word of bits
constexpr int32_t kTerms = 32;        // of dk, added at a time: a query and a head each
static_assert(kHeadThreads * kTileColumns / kOwn == kLossThreads, "a tile of dq");
static_assert(kEntries / kOwn * kTileColumns / kOwn == kLossThreads, "a tile of dk");

struct Params {
  IndexLossParams loss;
  device::DeviceVector dloss;
  AnyTensor dq, dk;
  device::DeviceVector dw;
  // Of the rows at hand, [units][num_rows] each. A pair is found by its number among those of its
  // row: keys_before its word of bits, and the bits before its own.
  int32_t* keys_before = nullptr;  // [words]
  float* ds = nullptr;             // [most_keys]
  uint32_t* positive = nullptr;    // [most_keys][head_words]
  int64_t most_keys = 0;
  int32_t head_words = 0, column_tiles = 0;
  // The sums of dk over earlier chunks, [units][entries][head_dim]; null: there is one chunk.
  float* dk_sums = nullptr;
  bool is_first = true, is_last = true;  // among the chunks

  __device__ int64_t row(int32_t unit, int64_t index) const { return unit * loss.num_rows + index; }
  __device__ bool is_positive(int64_t pair, int32_t head) const {
    return (positive[pair * head_words + head / 32] >> (head % 32) & 1) != 0;
  }
  __device__ float w(int32_t batch, int32_t head, int64_t query) const {
    return loss.w.data == nullptr ? 1.f : *loss.w.row<const float>(batch, head, query);
  }
};

__device__ void store_number(const AnyTensor& to, int64_t offset, float x) {
  with_elements(to.dtype, [&]<class Element>(const Element*) {
    if constexpr (sizeof(Element) == 2 || sizeof(Element) == 4) {
      static_cast<Element*>(to.at.data)[offset] = device::stored_as<Element>(x);
    }
  });
}

// By pair.

// A bit per head for each key of a tile.
struct PositiveBits {
  uint32_t of_key[kKeys];

  __device__ void add(const float (&products)[kOwn][kOwn]) {
#pragma unroll
    for (int32_t i = 0; i < kOwn; ++i) {
      uint32_t bits = 0;
#pragma unroll
      for (int32_t h = 0; h < kOwn; ++h) bits |= uint32_t(products[h][i] > 0) << (own_head() + h);
      if (bits != 0) atomicOr(of_key + own_key(i), bits);
    }
  }
};

__global__ void __launch_bounds__(kLossThreads, kCtas) by_pair(const __grid_constant__ Params p) {
  __shared__ KeyWalk walk;
  __shared__ PairTile pairs;
  __shared__ PositiveBits bits;
  const Row row = row_of_cta(p.loss);
  const int64_t row_index = p.row(row.unit, row.index);
  if (thread() < kKeys) bits.of_key[thread()] = 0;
  float lse = 0, total = 0, dloss = 0;
  if (row.query >= 0) {
    const float* const stats = p.loss.stats.row<const float>(row.batch, row.group, row.query);
    lse = stats[0], total = stats[1];
    dloss = *p.dloss.row<const float>(row.batch, row.group, row.query);
  }
  int32_t* const keys_before = p.keys_before + row_index * p.loss.listed.words;
  walk.for_each_tile(p.loss, row, keys_before, [&](const KeyTile& keys) {
    const int64_t own = row_index * p.most_keys + keys.place + thread();
    const bool has_key = thread() < keys.count;
    const auto pair =
        pairs.compute(p.loss, row, keys, [&](int32_t head, const float(&products)[kOwn][kOwn]) {
          bits.add(products);
          __syncthreads();
          if (has_key) p.positive[own * p.head_words + head / kHeads] = bits.of_key[thread()];
          if (thread() < kKeys) bits.of_key[thread()] = 0;
        });
    // Without weights the loss is 0 whatever the scores are.
    const float p_of_key = pair.weight / total;
    const float ds = total == 0 ? 0.f : dloss * pair.scale * (expf(pair.score - lse) - p_of_key);
    if (has_key) p.ds[own] = ds;
  });
}

// By query.

__global__ void __launch_bounds__(device::kLoopThreads) clear(const __grid_constant__ Params p) {
  const IndexLossParams& loss = p.loss;
  const int64_t heads = int64_t{loss.groups} * loss.heads;
  const int64_t rows = loss.units * loss.heads * loss.q_len;
  device::for_each_index(rows * loss.head_dim, [&](int64_t i) {
    const int64_t col = i % loss.head_dim, row = i / loss.head_dim;
    const int64_t query = row % loss.q_len, head = row / loss.q_len;
    store_number(p.dq, p.dq.offset(head / heads, head % heads, query) + col, 0);
    if (col == 0 && p.dw.data != nullptr) *p.dw.row<float>(head / heads, head % heads, query) = 0;
  });
}

// 32 heads of a row against 64 keys and 64 columns at a time. A thread has 4 heads and 4 columns.
struct QueryTile {
  KeyWalk walk;
  alignas(16) float ds[kKeys][kHeads];  // 0 unless q . k > 0
  alignas(16) float k[kKeys][kTileColumns];

  // u += ds x k
  __device__ void add(const Params& p, const Row& row, int32_t first_head, const KeyTile& keys,
                      int32_t first_col, float (&u)[kOwn][kOwn]) {
    const IndexLossParams& loss = p.loss;
    __syncthreads();
    const int64_t first_pair = p.row(row.unit, row.index) * p.most_keys + keys.place;
    for (int32_t i = thread(); i < kKeys * kHeads; i += kLossThreads) {
      const int32_t key = i / kHeads, head = first_head + i % kHeads;
      const bool counts = key < keys.count && head < loss.heads;
      ds[key][i % kHeads] =
          counts && p.is_positive(first_pair + key, head) ? p.ds[first_pair + key] : 0.f;
    }
    constexpr int32_t kPerRow = kTileColumns / 4;
    copy_fours<kKeys * kPerRow>(
        loss.k,
        [&](int32_t i) {
          const int32_t key = i / kPerRow, col = first_col + i % kPerRow * 4;
          if (key >= keys.count) return Four{0, 0};
          return Four{loss.k.offset(row.batch, row.group, keys.key(key)) + col,
                      loss.head_dim - col};
        },
        [&](int32_t i, const float4& x) {
          *reinterpret_cast<float4*>(&k[i / kPerRow][i % kPerRow * 4]) = x;
        });
    __syncthreads();
    const int32_t own_col = thread() % 16 * kOwn;
    for (int32_t key = 0; key < keys.count; ++key) {
#pragma unroll
      for (int32_t h = 0; h < kOwn; ++h) {
#pragma unroll
        for (int32_t c = 0; c < kOwn; ++c) {
          u[h][c] = fmaf(ds[key][own_head() + h], k[key][own_col + c], u[h][c]);
        }
      }
    }
  }
};

__global__ void __launch_bounds__(kLossThreads, kCtas)
    by_query(const __grid_constant__ Params p, int32_t head_tiles) {
  __shared__ QueryTile tile;
  const IndexLossParams& loss = p.loss;
  const Row row = row_of_cta(loss, head_tiles);
  if (row.query < 0) return;
  const int32_t first_head = int32_t(blockIdx.x % unsigned(head_tiles)) * kHeads;
  float dw[kOwn] = {};
  for (int32_t first_col = 0; first_col < loss.head_dim; first_col += kTileColumns) {
    float u[kOwn][kOwn] = {};
    tile.walk.for_each_tile(loss, row, nullptr, [&](const KeyTile& keys) {
      tile.add(p, row, first_head, keys, first_col, u);
    });
#pragma unroll
    for (int32_t h = 0; h < kOwn; ++h) {
      if (first_head + own_head() + h >= loss.heads) continue;
      const int32_t head = row.group * loss.heads + first_head + own_head() + h;
      const float w = p.w(row.batch, head, row.query);
#pragma unroll
      for (int32_t c = 0; c < kOwn; ++c) {
        const int32_t col = first_col + thread() % 16 * kOwn + c;
        if (col >= loss.head_dim) continue;
        store_number(p.dq, p.dq.offset(row.batch, head, row.query) + col, w * u[h][c]);
        if (p.dw.data == nullptr) continue;
        dw[h] = fmaf(number_at(loss.q, loss.q.offset(row.batch, head, row.query) + col), u[h][c],
                     dw[h]);
      }
    }
  }
  if (p.dw.data == nullptr) return;
#pragma unroll
  for (int32_t h = 0; h < kOwn; ++h) {
    for (int32_t step = 8; step > 0; step /= 2) dw[h] += __shfl_xor_sync(~0u, dw[h], step);
    if (thread() % 16 != 0 || first_head + own_head() + h >= loss.heads) continue;
    const int32_t head = row.group * loss.heads + first_head + own_head() + h;
    *p.dw.row<float>(row.batch, head, row.query) = dw[h];
  }
}

// By key.

// The rows at hand, in batches of one per thread: those that list an entry of a word.
struct ListingRows {
  int32_t rows[kLossThreads], keys_before[kLossThreads];  // ascending
  uint32_t bits[kLossThreads];
  device::CtaSum<kLossThreads> sum;

  // Rows [first, first + kLossThreads). Returns how many. All threads call.
  __device__ int32_t find(const Params& p, int32_t unit, int64_t first, int64_t word) {
    const int64_t index = first + thread();
    const uint32_t own = index < p.loss.num_rows ? p.loss.listed.row(unit, index)[word] : 0;
    const auto sums = sum.scan(own != 0);
    if (own != 0) {
      rows[sums.before] = int32_t(index);
      keys_before[sums.before] = p.keys_before[p.row(unit, index) * p.loss.listed.words + word];
      bits[sums.before] = own;
    }
    __syncthreads();
    return int32_t(sums.all);
  }
};

// 32 entries and 64 columns of dk. A thread has 4 x 4 of them; terms are (query, head), in order.
struct EntryTile {
  ListingRows listing;
  alignas(16) float gradient[kTerms][kEntries];  // ds * w if q . k > 0
  alignas(16) float q[kTerms][kTileColumns];

  // sums += gradient, transposed, x q for terms [first, first + kTerms) of the rows listed.
  __device__ void add(const Params& p, int32_t unit, int32_t first, int32_t num_terms,
                      int32_t first_col, float (&sums)[kOwn][kOwn]) {
    const IndexLossParams& loss = p.loss;
    const int32_t count = min(kTerms, num_terms - first);
    const auto row_of = [&](int32_t term) { return (first + term) / loss.heads; };
    const auto head_of = [&](int32_t term) { return (first + term) % loss.heads; };
    const auto query_of = [&](int32_t term) {
      return row_at(loss, listing.rows[row_of(term)], unit);
    };
    __syncthreads();
    for (int32_t i = thread(); i < kTerms * kEntries; i += kLossThreads) {
      const int32_t term = i / kEntries, entry = i % kEntries;
      float value = 0;
      if (term < count && (listing.bits[row_of(term)] >> entry & 1) != 0) {
        const int32_t place = row_of(term), head = head_of(term);
        const uint32_t before = listing.bits[place] & ((1u << entry) - 1);
        const int64_t pair = p.row(unit, listing.rows[place]) * p.most_keys +
                             listing.keys_before[place] + __popc(before);
        if (p.is_positive(pair, head)) {
          const Row row = query_of(term);
          value = p.ds[pair] * p.w(row.batch, row.group * loss.heads + head, row.query);
        }
      }
      gradient[term][entry] = value;
    }
    constexpr int32_t kPerRow = kTileColumns / 4;
    copy_fours<kTerms * kPerRow>(
        loss.q,
        [&](int32_t i) {
          const int32_t term = i / kPerRow, col = first_col + i % kPerRow * 4;
          if (term >= count) return Four{0, 0};
          const Row row = query_of(term);
          const int32_t head = row.group * loss.heads + head_of(term);
          return Four{loss.q.offset(row.batch, head, row.query) + col, loss.head_dim - col};
        },
        [&](int32_t i, const float4& x) {
          *reinterpret_cast<float4*>(&q[i / kPerRow][i % kPerRow * 4]) = x;
        });
    __syncthreads();
    uint32_t listed = 0;
    for (int32_t place = row_of(0); place <= row_of(count - 1); ++place) {
      listed |= listing.bits[place];
    }
    const int32_t own_entry = thread() / 16 * kOwn, own_col = thread() % 16 * kOwn;
    if ((listed >> own_entry & ((1u << kOwn) - 1)) == 0) return;
    float here[kOwn][kOwn] = {};  // added on its own: there may be millions of terms
    for (int32_t term = 0; term < count; ++term) {
#pragma unroll
      for (int32_t e = 0; e < kOwn; ++e) {
        const float slope = gradient[term][own_entry + e];
        if (slope == 0) continue;  // a query that does not list the entry may hold NaN
#pragma unroll
        for (int32_t c = 0; c < kOwn; ++c) {
          here[e][c] = fmaf(slope, q[term][own_col + c], here[e][c]);
        }
      }
    }
#pragma unroll
    for (int32_t i = 0; i < kOwn * kOwn; ++i) sums[i / kOwn][i % kOwn] += here[i / kOwn][i % kOwn];
  }
};

__global__ void __launch_bounds__(kLossThreads, kCtas) by_key(const __grid_constant__ Params p) {
  __shared__ EntryTile tile;
  const IndexLossParams& loss = p.loss;
  const int64_t cta = blockIdx.x / p.column_tiles, words = ceil_div(loss.entries, kEntries);
  const int32_t unit = int32_t(cta / words);
  const int64_t word = cta % words;
  const int32_t first_col = int32_t(blockIdx.x % unsigned(p.column_tiles)) * kTileColumns;
  float sums[kOwn][kOwn] = {};
  for (int64_t first = 0; first < loss.num_rows; first += kLossThreads) {
    const int32_t terms = tile.listing.find(p, unit, first, word) * loss.heads;
    for (int32_t i = 0; i < terms; i += kTerms) tile.add(p, unit, i, terms, first_col, sums);
  }
#pragma unroll
  for (int32_t e = 0; e < kOwn; ++e) {
#pragma unroll
    for (int32_t c = 0; c < kOwn; ++c) {
      const int64_t entry = word * kEntries + thread() / 16 * kOwn + e;
      const int32_t col = first_col + thread() % 16 * kOwn + c;
      if (entry >= loss.entries || col >= loss.head_dim) continue;
      float* const wide = p.dk_sums + (unit * loss.entries + entry) * loss.head_dim + col;
      const float sum = p.is_first ? sums[e][c] : *wide + sums[e][c];
      if (p.is_last) {
        store_number(p.dk, p.dk.offset(unit / loss.groups, unit % loss.groups, entry) + col, sum);
      } else {
        *wide = sum;
      }
    }
  }
}

// The scratch memory of a call.
struct Memory {
  int64_t most_keys = 0;  // of a row
  int32_t head_words = 0;
  RowChunks chunks;
  int64_t bits = 0, before = 0, ds = 0, positive = 0, dk_sums = 0;  // bytes of each

  int64_t bytes() const { return bits + before + ds + positive + dk_sums; }

  explicit Memory(const IndexLossArgs& args) {
    constexpr const char* kWho = "index_loss_backward: scratch memory";
    const int64_t units = args.q.shape[0] * args.k.shape[1], entries = args.k.shape[2];
    const int64_t heads = args.q.shape[1] / std::max<int64_t>(1, args.k.shape[1]);
    const int64_t words = device::row_words(entries);
    most_keys = entries;
    if (lists_alone(args)) {
      most_keys = std::min<int64_t>(entries, args.lists.gathers[0].table.room());
    }
    head_words = narrow(ceil_div(heads, 32), kWho);
    const int64_t pair_bytes = 4 * (1 + int64_t{head_words});
    const int64_t row_bytes = checked_mul(units, 4 * words + most_keys * pair_bytes, kWho);
    const int64_t sums = checked_mul(units * entries, 4 * args.q.shape[3], kWho);
    chunks = row_chunks(args, row_bytes, kMostLossBytes);
    if (!chunks.is_one()) {
      dk_sums = round_up(sums, 256);
      // They do not grow with q_len; what is left for rows may not vanish beside them.
      chunks = row_chunks(args, row_bytes, std::max(kMostLossBytes / 4, kMostLossBytes - dk_sums));
    }
    const int64_t rows = checked_mul(units, chunks.at_once, kWho);
    bits = chunk_bits_bytes(args, chunks.at_once);
    before = round_up(rows * 4 * words, 256);
    ds = round_up(rows * 4 * most_keys, 256);
    positive = round_up(rows * 4 * most_keys * head_words, 256);
  }
};

}  // namespace

int64_t index_gradient_bytes(const IndexGradientArgs& args) { return Memory(args.loss).bytes(); }

void run_index_gradients(const IndexGradientArgs& args) {
  const Memory memory(args.loss);
  const auto stream = static_cast<cudaStream_t>(args.loss.launch.stream);
  Params p;
  IndexLossParams& loss = p.loss;
  loss = device::index_loss_params(args.loss);
  p.dloss = device::device_tensor(args.dloss);
  p.dq = device::any_tensor(args.dq), p.dk = device::any_tensor(args.dk);
  if (args.dw.is_given()) p.dw = device::device_tensor(args.dw);
  p.most_keys = memory.most_keys;
  p.head_words = memory.head_words;
  p.column_tiles = int32_t(ceil_div(loss.head_dim, kTileColumns));
  auto* const base = static_cast<unsigned char*>(args.loss.launch.workspace);
  auto* place = base + memory.bits;
  const auto take = [&](int64_t bytes) { return std::exchange(place, place + bytes); };
  p.keys_before = reinterpret_cast<int32_t*>(take(memory.before));
  p.ds = reinterpret_cast<float*>(take(memory.ds));
  p.positive = reinterpret_cast<uint32_t*>(take(memory.positive));
  p.dk_sums = reinterpret_cast<float*>(take(memory.dk_sums));
  if (args.loss.has_rows && loss.units * loss.q_len > 0) {
    const int64_t count = int64_t{loss.units} * loss.heads * loss.q_len * loss.head_dim;
    device::launch("clearing gradients of an indexer", clear,
                   {device::loop_ctas(count), device::kLoopThreads, 0}, stream, p);
  }
  const int64_t words = ceil_div(loss.entries, int64_t{kEntries});
  memory.chunks.for_each([&](int64_t first, int64_t rows) {
    draw_chunk(args.loss, loss, first, rows, base);
    p.is_first = first == 0, p.is_last = first + rows >= memory.chunks.rows;
    const auto grid = [&](int64_t ctas) {
      return device::Grid{unsigned(narrow(ctas, "index_loss_backward: CTAs")), kLossThreads, 0};
    };
    const int64_t units_rows = loss.units * rows;
    if (units_rows > 0) {
      const int32_t head_tiles = int32_t(ceil_div(loss.heads, kHeads));
      device::launch("score gradients of an indexer", by_pair, grid(units_rows), stream, p);
      device::launch("dq of an indexer", by_query, grid(units_rows * head_tiles), stream, p,
                     head_tiles);
    }
    if (loss.units * words > 0) {
      device::launch("dk of an indexer", by_key, grid(loss.units * words * p.column_tiles), stream,
                     p);
    }
  });
}

}  // namespace keyhole::simple
