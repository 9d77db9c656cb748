// tests/support/tile_list_problem.h
// Tile lists drawn at random, the pattern that says the same pair by pair, and tensors to attend
// with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "keyhole/lists.h"
#include "keyhole/pattern.h"

namespace keyhole::test {

struct TileListCase {
  TileShape tile = {64, 64};
  int64_t batch = 1, heads = 2, kv_heads = 1, list_heads = 1;
  int64_t q_len = 200, k_len = 330, head_dim = 64;
  int64_t capacity = 4;
  bool is_wide = false, has_counts = false, has_bitmaps = false;
  double softcap = 0;
};
std::string to_string(const TileListCase& c);
// Every owner of heads, ragged and whole lengths, counts, bitmaps, empty lists.
std::vector<TileListCase> tile_list_cases();

// Lists in host memory. No tile is named twice, which no pattern could say.
class TileListProblem {
 public:
  TileListProblem(const TileListCase& c, uint64_t seed);

  TileListView view() const;  // of host memory
  // The arrays behind it, of 4 or 8 bytes an entry.
  std::vector<std::byte> tiles, counts, bitmap_of;
  std::vector<uint64_t> bitmaps;

  Pattern pattern() const;
  std::vector<float> q, k, v, dout;  // values that a bf16 holds

 private:
  bool allows(int64_t batch, int64_t head, int64_t query, int64_t key) const;

  TileListCase c_;
  struct Entry {
    int64_t tile, bitmap;
  };
  std::vector<std::vector<Entry>> lists_;  // [batch][list_heads][q_tiles]
};

}  // namespace keyhole::test
