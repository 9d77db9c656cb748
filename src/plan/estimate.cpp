// src/plan/estimate.cpp
// Samples queries (or query tiles) spread over the sequence and scales up. Small plans are counted
// exactly.
#include "plan/estimate.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/int_math.h"
#include "pattern/node.h"
#include "pattern/simplify.h"
#include "plan/classify.h"
#include "plan/draft.h"
#include "plan/residues.h"
#include "plan/row_keys.h"

namespace keyhole {
namespace {

constexpr int64_t kSampledTiles = 48;
constexpr int64_t kFirstRows = 512;  // the query tiles of the first rows are all counted
constexpr int64_t kSampledRows = 32;
constexpr int64_t kDrawnTiles = 256;  // partial tiles of opaque nodes that are actually drawn

// Calls visit(i) for at most `wanted` values spread over [0, count); returns how many. Steps by the
// golden ratio: even spacing would resonate with periodic patterns (every 256th row of blocks(16)
// begins a block and keeps one key under causal).
template <class Visit>
int64_t sample(int64_t count, int64_t wanted, Visit visit) {
  if (count <= wanted) {
    for (int64_t i = 0; i < count; ++i) visit(i);
    return count;
  }
  double place = 0.5;
  for (int64_t i = 0; i < wanted; ++i) {
    place = std::fmod(place + 0.6180339887498949, 1.0);
    visit(std::min(count - 1, int64_t(place * double(count))));
  }
  return wanted;
}

}  // namespace

double estimate_pairs(const Node& node, const Shape& shape) {
  double pairs = 0;
  // A row of a dilated pattern has k_len / s segments: fewer rows when rows are long.
  const int64_t wanted = shape.k_len > 1 << 18 ? kSampledRows / 4 : kSampledRows;
  const int64_t taken = sample(shape.q_len, wanted, [&](int64_t query) {
    for_each_key(node, query + shape.q_offset(), shape.k_len,
                 [&pairs](Span keys) { pairs += double(keys.size()); });
  });
  return taken == 0 ? 0 : pairs * double(shape.q_len) / double(taken);
}

namespace {

// From `sampled` query tiles.
double listed_tiles(const Node& node, const Shape& shape, int64_t stride, TileShape tile,
                    int64_t sampled) {
  const int64_t q_tiles = ceil_div(ceil_div(shape.q_len, stride), tile.q);
  double listed = 0;
  int64_t drawn = 0;
  std::vector<TileRun> runs;
  const auto visit = [&](int64_t i) {
    const int64_t c = i % stride, q_tile = i / stride;
    const ResidueClass residue = residue_class(shape, stride, c);
    const NodePtr inner = stride == 1 ? node.shared_from_this() : node.in_residue(stride, c);
    const int64_t begin = q_tile * tile.q, end = std::min(begin + tile.q, residue.num_q);
    const int64_t offset = class_offset(shape, stride, c);
    runs.clear();
    list_tiles(*inner, {offset + begin, offset + end}, residue.num_k, tile, end - begin == tile.q,
               runs);
    for (const TileRun& run : runs) {
      bool is_listed = true;
      if (run.bitmap == kUnnamed && inner->is_opaque() && drawn < kDrawnTiles) {
        ++drawn;
        const int64_t k = int64_t{run.tile} * tile.k;
        const Rect rect{{offset + begin, offset + end}, {k, std::min(k + tile.k, residue.num_k)}};
        BitRows bits(int32_t(rect.q.size()), int32_t(rect.k.size()));
        inner->draw(rect, bits);
        is_listed = bits.count() > 0;
      }
      if (is_listed) listed += run.count;
    }
  };
  // The first lists are all counted. Global tokens make them as long as a hundred others, and a
  // sample that includes one would count it for many.
  const int64_t lists = q_tiles * stride;
  const int64_t first = std::min(lists, ceil_div(kFirstRows, tile.q));
  for (int64_t i = 0; i < first; ++i) visit(i);
  const double in_first = std::exchange(listed, 0);
  const int64_t taken = sample(lists - first, sampled, [&](int64_t i) { visit(first + i); });
  return in_first + (taken == 0 ? 0 : listed * double(lists - first) / double(taken));
}

}  // namespace

double estimate_tiles(const Node& node, const Shape& shape, int64_t stride, TileShape tile) {
  return listed_tiles(node, shape, stride, tile, kSampledTiles);
}

double count_tiles(const Pattern& pattern, const Shape& shape, TileShape tile) {
  double tiles = 0;
  for (int64_t head = 0; head < shape.batch * shape.heads; ++head) {
    const NodePtr node = pattern.for_head(shape, head / shape.heads, head % shape.heads).node();
    tiles += listed_tiles(*simplify(node), shape, 1, tile, ceil_div(shape.q_len, tile.q));
  }
  return tiles;
}

}  // namespace keyhole
