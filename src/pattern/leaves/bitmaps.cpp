// src/pattern/leaves/bitmaps.cpp
// bitmaps(tile_q, tile_k, offsets, keys, bitmap, rows): a block-sparse matrix whose tiles may be
// partial. Query tile i attends to the key tiles keys[offsets[i] .. offsets[i + 1]): to all of tile
// e where bitmap[e] is -1, else to the pairs of that bitmap. The bitmaps stand one below the other
// in `rows`, tile_q rows of tile_k pairs each. What lies outside the array does not attend.
//
//   bitmaps(2, 2, {0, 1, 3}, {0, 0, 1}, {0, -1, 0}, {{1, 0}, {1, 1}})     # . . .
//                                                                         # # . .
//                                                                         # # # .
//                                                                         # # # #
#include <algorithm>
#include <limits>
#include <unordered_map>

#include "base/check.h"
#include "base/hash.h"
#include "base/int_math.h"
#include "pattern/leaves/bit_runs.h"
#include "pattern/leaves/segments.h"
#include "pattern/leaves/sizes_of_rows.h"
#include "pattern/node.h"

namespace keyhole {
namespace {

constexpr int64_t kFull = -1;

struct Tile {
  int64_t key;     // which key tile
  int64_t bitmap;  // kFull or the number of its bitmap
};

class Bitmaps final : public Node {
 public:
  // Tiles ascend by key inside a row and have no bitmap that is empty or full.
  Bitmaps(int64_t tile_q, int64_t tile_k, std::vector<int64_t> begins, std::vector<Tile> tiles,
          BitRows bits, std::string text)
      : tile_q_(tile_q),
        tile_k_(tile_k),
        begins_(std::move(begins)),
        tiles_(std::move(tiles)),
        bits_(std::move(bits)),
        text_(std::move(text)) {
    for (const Tile& tile : tiles_) last_key_ = std::max(last_key_, tile.key);
  }

  bool allows(Position q, Position k) const override {
    const int64_t row = floor_div(q, tile_q_), key = floor_div(k, tile_k_);
    if (row < 0 || row >= num_rows()) return false;
    const Tile* tile = first_from(row, key);
    if (tile == end_of(row) || tile->key != key) return false;
    return tile->bitmap == kFull ||
           get_bit(bitmap_row(*tile, q - row * tile_q_), k - key * tile_k_);
  }
  std::string text() const override { return text_; }

  void strip(Span q, Span k, Position grain, Strip& out) const override {
    if (q.is_empty() || k.is_empty()) return;
    const int64_t first = floor_div(q.begin, tile_q_), last = floor_div(q.end - 1, tile_q_);
    Strip exact;
    if (first == last) {
      const Span rows = {q.begin - first * tile_q_, q.end - first * tile_q_};
      const bool is_coarse = grain >= tile_k_ && rows.size() == tile_q_;
      for_each_tile(first, k, [&](const Tile& tile) {
        const Position begin = tile.key * tile_k_;
        if (tile.bitmap == kFull || is_coarse) {
          append_inside(k, begin, begin + tile_k_, tile.bitmap == kFull ? Cover::all : Cover::some,
                        exact);
        } else {
          append_bitmap(tile, rows, k, exact);
        }
      });
    } else {
      exact = strip_of_rows({first, last + 1}, k);
    }
    append_blurred(exact, grain, out);
  }

  // Where each tile begins, and which bitmap it has.
  bool sign(const Rect& rect, Signature& signature) const override {
    const int64_t first = floor_div(rect.q.begin, tile_q_);
    const int64_t last = floor_div(rect.q.end - 1, tile_q_);
    int64_t num_tiles = 0;
    for (int64_t row = first; row <= last && num_tiles <= kMostSigned; ++row) {
      for_each_tile(row, rect.k, [&](const Tile& tile) {
        signature.add(row * tile_q_ - rect.q.begin);
        signature.add(tile.key * tile_k_ - rect.k.begin);
        signature.add(tile.bitmap);
        ++num_tiles;
      });
    }
    signature.add(num_tiles);
    return num_tiles <= kMostSigned;
  }

  void draw(const Rect& rect, BitRows& bits) const override {
    const int64_t first = floor_div(rect.q.begin, tile_q_);
    const int64_t last = floor_div(rect.q.end - 1, tile_q_);
    for (int64_t row = first; row <= last; ++row) {
      const Span q = intersect(rect.q, {row * tile_q_, row * tile_q_ + tile_q_});
      for_each_tile(row, rect.k, [&](const Tile& tile) {
        const Position begin = tile.key * tile_k_;
        const Span k = intersect(rect.k, {begin, begin + tile_k_});
        for (Position query = q.begin; query < q.end; ++query) {
          uint64_t* to = bits.row(int32_t(query - rect.q.begin));
          if (tile.bitmap == kFull) {
            set_bits(to, k.begin - rect.k.begin, k.end - rect.k.begin);
          } else {
            copy_bits(bitmap_row(tile, query - row * tile_q_), k.begin - begin, k.size(), to,
                      k.begin - rect.k.begin);
          }
        }
      });
    }
  }

  std::optional<KnownSizes> sizes() const override {
    return sizes_of_rows("bitmaps",
                         "give a row of tiles for every tile_q positions; where row 0 begins with "
                         "query 0, use from_block_mask, or a plan with offset 0",
                         num_rows(), tile_q_, last_key_, tile_k_);
  }

 private:
  static constexpr int64_t kMostSigned = 64;  // tiles; beyond that, signatures hardly repeat

  int64_t num_rows() const { return int64_t(begins_.size()) - 1; }
  const Tile* end_of(int64_t row) const { return tiles_.data() + begins_[size_t(row) + 1]; }
  const Tile* first_from(int64_t row, int64_t key) const {
    const Tile* begin = tiles_.data() + begins_[size_t(row)];
    return std::partition_point(begin, end_of(row), [&](const Tile& t) { return t.key < key; });
  }
  const uint64_t* bitmap_row(const Tile& tile, int64_t row) const {
    return bits_.row(int32_t(tile.bitmap * tile_q_ + row));
  }

  // Calls visit(tile) for the tiles of one row of tiles that hold keys of k, ascending.
  template <class Visit>
  void for_each_tile(int64_t row, Span k, Visit visit) const {
    if (row < 0 || row >= num_rows()) return;
    for (const Tile* tile = first_from(row, floor_div(k.begin, tile_k_));
         tile != end_of(row) && tile->key * tile_k_ < k.end; ++tile) {
      visit(*tile);
    }
  }

  // What some rows of one bitmap see, as runs of columns that all, or some of them, have.
  void append_bitmap(const Tile& tile, Span rows, Span k, Strip& out) const {
    const Position begin = tile.key * tile_k_;
    const Span columns = intersect({k.begin - begin, k.end - begin}, {0, tile_k_});
    for (int64_t word = columns.begin >> 6; word * 64 < columns.end; ++word) {
      const uint64_t ones = ones_inside(columns, word);
      uint64_t any = 0, every = ones;
      for (int64_t row = rows.begin; row < rows.end; ++row) {
        const uint64_t bits = bitmap_row(tile, row)[word] & ones;
        any |= bits, every &= bits;
      }
      append_runs(any, every, begin + word * 64, out);
    }
  }

  // What several rows of tiles see: a key tile is `all` when it is full in each of them.
  Strip strip_of_rows(Span rows, Span k) const {
    std::vector<Tile> seen;
    const Span listed = intersect(rows, {0, num_rows()});
    for (int64_t row = listed.begin; row < listed.end; ++row) {
      for_each_tile(row, k, [&](const Tile& tile) { seen.push_back(tile); });
    }
    std::sort(seen.begin(), seen.end(), [](const Tile& a, const Tile& b) { return a.key < b.key; });
    Strip out;
    for (auto first = seen.begin(); first != seen.end();) {
      const auto last =
          std::find_if(first, seen.end(), [&](const Tile& t) { return t.key != first->key; });
      const auto full = std::count_if(first, last, [](const Tile& t) { return t.bitmap == kFull; });
      append_inside(k, first->key * tile_k_, first->key * tile_k_ + tile_k_,
                    full == rows.size() ? Cover::all : Cover::some, out);
      first = last;
    }
    return out;
  }

  // Copies `count` bits of a bitmap's row into a clear stretch of another row.
  void copy_bits(const uint64_t* from, int64_t from_column, int64_t count, uint64_t* to,
                 int64_t to_column) const {
    while (count > 0) {
      const int64_t step = std::min<int64_t>(count, 64 - (to_column & 63));
      const uint64_t ones = step == 64 ? ~uint64_t{0} : (uint64_t{1} << step) - 1;
      to[to_column >> 6] |= (bits_from(from, bits_.words(), from_column) & ones)
                            << (to_column & 63);
      from_column += step, to_column += step, count -= step;
    }
  }

  int64_t tile_q_, tile_k_;
  std::vector<int64_t> begins_;  // [rows of tiles + 1]
  std::vector<Tile> tiles_;
  BitRows bits_;  // [bitmaps x tile_q][tile_k]
  std::string text_;
  int64_t last_key_ = -1;  // the largest of all; -1: there is none
};

// Bitmaps by content: equal ones get one number, so that their tiles have equal signatures.
class BitmapTable {
 public:
  BitmapTable(std::span<const uint8_t> allowed, int64_t num, int64_t tile_q, int64_t tile_k)
      : bits_(int32_t(num * tile_q), int32_t(tile_k)) {
    for (int64_t row = 0; row < num * tile_q; ++row) {
      for (int64_t column = 0; column < tile_k; ++column) {
        if (allowed[size_t(row * tile_k + column)] == 0) continue;
        bits_.row(int32_t(row))[column >> 6] |= uint64_t{1} << (column & 63);
      }
    }
    const size_t words = size_t(tile_q) * size_t(bits_.words());
    std::unordered_map<std::string_view, int64_t> numbers;
    for (int64_t i = 0; i < num; ++i) {
      const uint64_t* first = bits_.data().data() + size_t(i) * words;
      int64_t pairs = 0;
      for (size_t word = 0; word < words; ++word) pairs += std::popcount(first[word]);
      const std::string_view bytes(reinterpret_cast<const char*>(first), words * sizeof *first);
      const int64_t number = numbers.try_emplace(bytes, i).first->second;
      names_.push_back(pairs == 0 ? kEmpty : pairs == tile_q * tile_k ? kFull : number);
    }
  }

  static constexpr int64_t kEmpty = -2;
  int64_t name_of(int64_t bitmap) const { return bitmap == kFull ? kFull : names_[size_t(bitmap)]; }
  BitRows take_bits() { return std::move(bits_); }

 private:
  BitRows bits_;
  std::vector<int64_t> names_;
};

void check_rows(const std::vector<int64_t>& offsets, size_t num_keys) {
  KEYHOLE_CHECK(!offsets.empty() && offsets.front() == 0,
                "bitmaps: offsets must begin with 0 and have one number more than rows of tiles");
  for (size_t i = 1; i < offsets.size(); ++i) {
    KEYHOLE_CHECK(offsets[i] >= offsets[i - 1], "bitmaps: offsets fall from ", offsets[i - 1],
                  " to ", offsets[i], " at ", i, "; they must not decrease");
  }
  KEYHOLE_CHECK(offsets.back() == int64_t(num_keys), "bitmaps: offsets end with ", offsets.back(),
                " but there are ", num_keys, " keys; the two must be equal");
}

}  // namespace

Pattern bitmaps(int64_t tile_q, int64_t tile_k, std::vector<int64_t> offsets,
                std::vector<int64_t> keys, std::vector<int64_t> bitmap,
                std::span<const uint8_t> allowed) {
  constexpr int64_t kMostSide = 4096;
  KEYHOLE_CHECK(tile_q >= 1 && tile_q <= kMostSide && tile_k >= 1 && tile_k <= kMostSide,
                "bitmaps: the tile is ", tile_q, " x ", tile_k, "; sides of 1 to ", kMostSide,
                " are accepted");
  check_rows(offsets, keys.size());
  KEYHOLE_CHECK(bitmap.size() == keys.size(), "bitmaps: got ", keys.size(), " keys and ",
                bitmap.size(), " numbers of bitmaps; each tile has one, -1 where it is full");
  const int64_t num = int64_t(allowed.size()) / (tile_q * tile_k);
  KEYHOLE_CHECK(int64_t(allowed.size()) == num * tile_q * tile_k &&
                    num * tile_q <= std::numeric_limits<int32_t>::max(),
                "bitmaps: ", allowed.size(), " pairs of bitmaps are not a whole number of ", tile_q,
                " x ", tile_k, " tiles");
  BitmapTable table(allowed, num, tile_q, tile_k);

  std::vector<int64_t> begins = {0};
  std::vector<Tile> tiles;
  for (size_t row = 0; row + 1 < offsets.size(); ++row) {
    const size_t first = tiles.size();
    for (auto e = size_t(offsets[row]); e < size_t(offsets[row + 1]); ++e) {
      KEYHOLE_CHECK(keys[e] >= 0 && keys[e] < kUnbounded / tile_k, "bitmaps: key ", e, " is ",
                    keys[e], "; expected 0 to ", kUnbounded / tile_k - 1);
      KEYHOLE_CHECK(bitmap[e] >= kFull && bitmap[e] < num, "bitmaps: tile ", e, " names bitmap ",
                    bitmap[e], "; there are ", num, ", and -1 is a full tile");
      if (table.name_of(bitmap[e]) != BitmapTable::kEmpty) {
        tiles.push_back({keys[e], table.name_of(bitmap[e])});
      }
    }
    std::sort(tiles.begin() + int64_t(first), tiles.end(),
              [](const Tile& a, const Tile& b) { return a.key < b.key; });
    for (size_t i = first + 1; i < tiles.size(); ++i) {
      KEYHOLE_CHECK(tiles[i].key != tiles[i - 1].key, "bitmaps: row ", row, " lists key tile ",
                    tiles[i].key, " twice");
    }
    begins.push_back(int64_t(tiles.size()));
  }

  BitRows bits = table.take_bits();
  Fnv1a64 hash;
  hash.add(begins);
  for (const Tile& tile : tiles) hash.add(uint64_t(tile.key)), hash.add(uint64_t(tile.bitmap));
  for (const uint64_t word : bits.data()) hash.add(word);
  std::string text = say("bitmaps(<", tile_q, "x", tile_k, ", ", begins.size() - 1, " rows, ",
                         tiles.size(), " tiles, ", num, " bitmaps #", to_hex(hash.value()), ">)");
  return Pattern(std::make_shared<Bitmaps>(tile_q, tile_k, std::move(begins), std::move(tiles),
                                           std::move(bits), std::move(text)));
}

}  // namespace keyhole
