// tests/support/tile_list_problem.cpp
#include "support/tile_list_problem.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/bits.h"
#include "base/check.h"
#include "base/dtype.h"
#include "base/int_math.h"
#include "base/random.h"

namespace keyhole::test {
namespace {

constexpr int64_t kBitmaps = 3;

std::vector<std::byte> stored(const std::vector<int64_t>& numbers, bool is_wide) {
  std::vector<std::byte> bytes(numbers.size() * (is_wide ? 8 : 4));
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto narrow_one = int32_t(numbers[i]);
    if (is_wide) {
      std::memcpy(bytes.data() + 8 * i, &numbers[i], 8);
    } else {
      std::memcpy(bytes.data() + 4 * i, &narrow_one, 4);
    }
  }
  return bytes;
}

std::vector<float> drawn(Random& random, int64_t count) {
  std::vector<float> numbers(static_cast<size_t>(count));
  for (float& number : numbers) {
    number = to_f32(Traits<BFloat16>::from(float(random.normal())));
  }
  return numbers;
}

}  // namespace

std::string to_string(const TileListCase& c) {
  return say("tile ", to_string(c.tile), " batch ", c.batch, " heads ", c.heads, "/", c.kv_heads,
             "/", c.list_heads, " lengths ", c.q_len, "x", c.k_len, " head_dim ", c.head_dim,
             " capacity ", c.capacity, c.is_wide ? " int64" : "", c.has_counts ? " counts" : "",
             c.has_bitmaps ? " bitmaps" : "", c.softcap > 0 ? " softcap" : "");
}

std::vector<TileListCase> tile_list_cases() {
  return {
      {},
      {.tile = {128, 128}, .q_len = 256, .k_len = 384},
      {.tile = {128, 128}, .heads = 4, .kv_heads = 2, .list_heads = 2, .has_counts = true},
      {.tile = {128, 128},
       .batch = 2,
       .heads = 4,
       .kv_heads = 2,
       .list_heads = 4,
       .q_len = 129,
       .k_len = 257,
       .is_wide = true,
       .has_bitmaps = true},
      {.tile = {128, 64},
       .heads = 2,
       .kv_heads = 2,
       .list_heads = 2,
       .q_len = 300,
       .k_len = 65,
       .has_counts = true,
       .has_bitmaps = true},
      {.tile = {64, 128},
       .batch = 2,
       .heads = 3,
       .kv_heads = 3,
       .list_heads = 1,
       .head_dim = 128,
       .has_bitmaps = true},
      {.tile = {256, 256},
       .heads = 2,
       .kv_heads = 2,
       .list_heads = 1,
       .q_len = 700,
       .k_len = 1000,
       .head_dim = 128,
       .capacity = 2,
       .has_counts = true},
      {.q_len = 1, .k_len = 1, .capacity = 1},
      {.q_len = 63, .k_len = 640, .capacity = 40, .has_counts = true},
      {.tile = {128, 128}, .head_dim = 128, .softcap = 2},
      {.batch = 2,
       .heads = 4,
       .kv_heads = 2,
       .list_heads = 2,
       .head_dim = 200,
       .has_counts = true,
       .has_bitmaps = true},
      {.head_dim = 136, .softcap = 2},
      {.tile = {128, 64}, .q_len = 300, .head_dim = 256, .has_bitmaps = true},
      {.q_len = 0, .capacity = 1},
      {.tile = {128, 128}, .k_len = 0, .head_dim = 128, .capacity = 1, .has_counts = true},
  };
}

TileListProblem::TileListProblem(const TileListCase& c, uint64_t seed) : c_(c) {
  Random random(seed);
  const int64_t q_tiles = ceil_div(c.q_len, c.tile.q), k_tiles = ceil_div(c.k_len, c.tile.k);
  std::vector<int64_t> tile_numbers, count_numbers, bitmap_numbers;
  for (int64_t list = 0; list < c.batch * c.list_heads * q_tiles; ++list) {
    std::vector<int64_t> order(static_cast<size_t>(k_tiles));
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size(); i > 1; --i)
      std::swap(order[i - 1], order[size_t(random.below(int64_t(i)))]);
    std::vector<Entry>& entries = lists_.emplace_back();
    const int64_t count = random.chance(15) ? 0 : random.between(0, c.capacity);
    for (int64_t place = 0; place < c.capacity; ++place) {
      const bool is_there = place < k_tiles && !random.chance(20);
      const int64_t tile = is_there ? order[size_t(place)] : -1;
      const int64_t bitmap = c.has_bitmaps && random.chance(60) ? random.below(kBitmaps) : -1;
      tile_numbers.push_back(tile);
      bitmap_numbers.push_back(bitmap);
      const bool is_counted = !c.has_counts || place < count;
      if (is_there && is_counted) entries.push_back({tile, c.has_bitmaps ? bitmap : -1});
    }
    count_numbers.push_back(count);
  }
  tiles = stored(tile_numbers, c.is_wide);
  if (c.has_counts) counts = stored(count_numbers, c.is_wide);
  if (c.has_bitmaps) {
    bitmap_of = stored(bitmap_numbers, c.is_wide);
    bitmaps.resize(size_t(kBitmaps * c.tile.q * words_per_row(c.tile.k)));
    for (uint64_t& word : bitmaps) word = random.next() & random.next();
  }
  q = drawn(random, c.batch * c.heads * c.q_len * c.head_dim);
  k = drawn(random, c.batch * c.kv_heads * c.k_len * c.head_dim);
  v = drawn(random, c.batch * c.kv_heads * c.k_len * c.head_dim);
  dout = drawn(random, c.batch * c.heads * c.q_len * c.head_dim);
}

TileListView TileListProblem::view() const {
  const int64_t q_tiles = ceil_div(c_.q_len, c_.tile.q);
  const auto index_view = [&](const std::vector<std::byte>& bytes, int64_t entries) {
    const std::initializer_list<int64_t> shape = {c_.batch, c_.list_heads, q_tiles, entries};
    const void* const data = bytes.data();
    return c_.is_wide ? IndexView(static_cast<const int64_t*>(data), shape)
                      : IndexView(static_cast<const int32_t*>(data), shape);
  };
  TileListView lists;
  lists.tile = c_.tile;
  lists.tiles = index_view(tiles, c_.capacity);
  if (c_.has_counts) lists.counts = index_view(counts, 1);
  if (c_.has_bitmaps) {
    lists.bitmap_of = index_view(bitmap_of, c_.capacity);
    lists.bitmaps = bitmaps.data();
    lists.num_bitmaps = kBitmaps;
  }
  return lists;
}

bool TileListProblem::allows(int64_t batch, int64_t head, int64_t query, int64_t key) const {
  const int64_t q_tiles = ceil_div(c_.q_len, c_.tile.q);
  const int64_t list_head = head / (c_.heads / c_.list_heads);
  const int64_t list = (batch * c_.list_heads + list_head) * q_tiles + query / c_.tile.q;
  for (const Entry& entry : lists_[size_t(list)]) {
    if (entry.tile != key / c_.tile.k) continue;
    if (entry.bitmap < 0) return true;
    const int64_t row = entry.bitmap * c_.tile.q + query % c_.tile.q;
    return get_bit(bitmaps.data() + row * words_per_row(c_.tile.k), key % c_.tile.k);
  }
  return false;
}

Pattern TileListProblem::pattern() const {
  std::vector<Pattern> of_batch;
  for (int64_t batch = 0; batch < c_.batch; ++batch) {
    std::vector<Pattern> of_head;
    for (int64_t head = 0; head < c_.heads; ++head) {
      std::vector<uint8_t> allowed;
      for (int64_t query = 0; query < c_.q_len; ++query) {
        for (int64_t key = 0; key < c_.k_len; ++key) {
          allowed.push_back(allows(batch, head, query, key));
        }
      }
      of_head.push_back(mask(allowed, c_.q_len, c_.k_len));
    }
    of_batch.push_back(per_head(of_head));
  }
  return per_batch(of_batch);
}

}  // namespace keyhole::test
