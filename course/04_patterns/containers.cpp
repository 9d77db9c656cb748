// course/04_patterns/containers.cpp
// The same pairs kept in five ways: a mask of bytes, CSR, lists of keys, tiles with bitmaps, the
// library's plan. All give the same result; bytes and time depend on where the pairs are.
//   containers [length, a multiple of 128]
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <utility>

#include "definition.h"

using namespace keyhole;
using course::Csr, course::Head, course::Values;

namespace {

constexpr int64_t kHeadDim = 64, kTile = 128;
constexpr int64_t kWords = kTile / 64;  // of 64 bits, in a row of a bitmap

// Eight sums that do not wait for each other: a compiler puts them into one vector.
float dot(const float* a, const float* b) {
  std::array<float, 8> sums{};
  for (int64_t d = 0; d < kHeadDim; d += 8) {
    for (std::size_t i = 0; i < 8; ++i) sums[i] += a[d + i] * b[d + i];
  }
  return sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}

// One query over a list of keys: each key is fetched for this query alone.
void one_row(const Head& head, int64_t query, const int32_t* keys, int64_t count, Values& out) {
  const float* const q = head.q.data() + query * kHeadDim;
  float* const row = out.data() + query * kHeadDim;
  std::fill(row, row + kHeadDim, 0.0f);
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float* const k = head.k.data() + keys[i] * kHeadDim;
    const float* const v = head.v.data() + keys[i] * kHeadDim;
    const float weight = std::exp(dot(q, k) / 8);  // 8: the root of head_dim
    sum += weight;
    for (int64_t d = 0; d < kHeadDim; ++d) row[d] += weight * v[d];
  }
  for (int64_t d = 0; d < kHeadDim && sum > 0; ++d) row[d] /= sum;
}

void run_csr(const Head& head, const Csr& rows, Values& out) {
  for (int64_t query = 0; query < head.q_len; ++query) {
    const int32_t begin = rows.offsets[query];
    one_row(head, query, rows.keys.data() + begin, rows.offsets[query + 1] - begin, out);
  }
}

// Reads a byte for every pair, also for those that do not attend.
void run_mask(const Head& head, const std::vector<uint8_t>& mask, Values& out) {
  std::vector<int32_t> keys;
  for (int64_t query = 0; query < head.q_len; ++query) {
    keys.clear();
    for (int64_t key = 0; key < head.k_len; ++key) {
      if (mask[query * head.k_len + key]) keys.push_back(static_cast<int32_t>(key));
    }
    one_row(head, query, keys.data(), std::ssize(keys), out);
  }
}

// Tiles of 128 x 128, as lists of the library: tiles[row][i] is a key tile, which[row][i] its
// bitmap. Equal bitmaps are kept once. -1 ends a list.
struct Tiles {
  std::vector<int32_t> tiles, which;
  std::vector<uint64_t> bitmaps;
  int64_t num_bitmaps = 0;
};

Tiles tiles_of(const Csr& rows, int64_t length) {
  const int64_t per_row = length / kTile;
  Tiles made{std::vector<int32_t>(per_row * per_row, -1),
             std::vector<int32_t>(per_row * per_row, -1),
             {},
             0};
  std::map<std::vector<uint64_t>, int32_t> known;
  for (int64_t row = 0; row < per_row; ++row) {
    std::map<int32_t, std::vector<uint64_t>> drawn;  // key tile -> bitmap
    for (int64_t query = row * kTile; query < (row + 1) * kTile; ++query) {
      for (int32_t e = rows.offsets[query]; e < rows.offsets[query + 1]; ++e) {
        std::vector<uint64_t>& bits = drawn[rows.keys[e] / kTile];
        bits.resize(kTile * kWords);
        const int64_t column = rows.keys[e] % kTile;
        bits[query % kTile * kWords + column / 64] |= uint64_t{1} << (column % 64);
      }
    }
    int64_t entry = row * per_row;
    for (const auto& [tile, bits] : drawn) {
      const auto [at, is_new] = known.try_emplace(bits, static_cast<int32_t>(known.size()));
      if (is_new) made.bitmaps.insert(made.bitmaps.end(), bits.begin(), bits.end());
      made.tiles[entry] = tile;
      made.which[entry++] = at->second;
    }
  }
  made.num_bitmaps = std::ssize(known);
  return made;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t length = argc > 1 ? std::atoll(argv[1]) : 1024;
  const Head head = course::random_head(length, length, kHeadDim);
  for (const Pattern& pattern : {window(64, 63), random(1, 128, 7)}) {
    const Csr rows = course::csr_of(pattern, length);
    std::vector<uint8_t> mask(length * length);
    std::vector<int32_t> lists;  // CSR with 128 places in every row; -1: no key
    for (int64_t query = 0; query < length; ++query) {
      for (int32_t e = rows.offsets[query]; e < rows.offsets[query + 1]; ++e) {
        mask[query * length + rows.keys[e]] = 1;
        lists.push_back(rows.keys[e]);
      }
      lists.resize((query + 1) * 128, -1);
    }
    const Tiles tiles = tiles_of(rows, length);
    const int64_t per_row = length / kTile;
    TileListView tile_view;
    tile_view.tile = {kTile, kTile};
    tile_view.tiles = IndexView(tiles.tiles.data(), {1, 1, per_row, per_row});
    tile_view.bitmap_of = IndexView(tiles.which.data(), {1, 1, per_row, per_row});
    tile_view.bitmaps = tiles.bitmaps.data();
    tile_view.num_bitmaps = tiles.num_bitmaps;
    const IndexView list_view(lists.data(), {1, 1, length, 128});
    const Plan compiled = plan(pattern, length, length);

    const Values expected = course::by_definition(head, pattern);
    std::printf("%s: %zu pairs\n%-14s %8s %8s %12s\n", pattern.text().c_str(), rows.keys.size(),
                "container", "KiB", "ms", "agrees");
    const auto report = [&](const char* name, std::size_t bytes, auto&& run) {
      Values out(head.q.size());
      const double ms = course::cpu_milliseconds([&] { run(out); });
      std::printf("%-14s %8.1f %8.3f %12s\n", name, static_cast<double>(bytes) / 1024, ms,
                  course::largest_difference(out, expected) < 1e-5 ? "yes" : "no");
    };
    report("mask", mask.size(), [&](Values& out) { run_mask(head, mask, out); });
    report("csr", 4 * (rows.offsets.size() + rows.keys.size()),
           [&](Values& out) { run_csr(head, rows, out); });
    report("key_lists", 4 * lists.size(),
           [&](Values& out) { course::run_library(head, list_view, out); });
    report("tiles", 8 * (tiles.tiles.size() + tiles.bitmaps.size()),
           [&](Values& out) { course::run_library(head, tile_view, out); });
    // 32 x 32: the tile that the library's kernel chooses for the window.
    report("plan", static_cast<std::size_t>(compiled.explain({32, 32}).plan_bytes),
           [&](Values& out) { course::run_library(head, compiled, out); });
    std::printf("\n");
  }
}
