// include/keyhole/pattern.h
// Pattern: what attends to what. Leaves, operators, parse and print.
//
//   Pattern p = causal() & (window(1023) | sinks(4));
//   Pattern q = parse("causal & (window(1023) | sinks(4))");   // the same pattern
//
// A pattern is defined over positions: q is the position of a query, k that of a key. Query i of
// q_len stands at position i + (k_len - q_len) unless the shape gives another offset.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

using Position = int64_t;
inline constexpr Position kUnbounded = INT64_MAX / 4;  // "inf" in window(inf, 0)

class Node;  // src/pattern/node.h: how the library asks a pattern
using NodePtr = std::shared_ptr<const Node>;

// The rectangle a pattern is asked about. heads counts query heads.
struct Shape {
  int64_t batch = 1;
  int64_t heads = 1;
  int64_t q_len = 0;
  int64_t k_len = 0;
  std::optional<int64_t> offset = {};  // the position of query 0; k_len - q_len when not given

  int64_t q_offset() const { return offset.value_or(k_len - q_len); }
  bool operator==(const Shape&) const = default;
};

// A pattern as one head of one batch entry sees it. Whatever depends on lengths, head or batch
// entry (random, per_head, per_batch, at) is resolved.
class HeadPattern {
 public:
  HeadPattern(NodePtr node, int64_t q_offset) : node_(std::move(node)), q_offset_(q_offset) {}
  bool allows(int64_t query, int64_t key) const;  // counted from 0, not positions
  const NodePtr& node() const { return node_; }

 private:
  NodePtr node_;
  int64_t q_offset_;
};

class Pattern {
 public:
  explicit Pattern(NodePtr node) : node_(std::move(node)) {}

  std::string text() const;  // what parse() reads
  // Throws Error(usage) when the pattern was made for other sizes.
  HeadPattern for_head(const Shape& shape, int64_t batch = 0, int64_t head = 0) const;
  // Whether heads or batch entries of these lengths may see different pairs (per_head, per_batch,
  // `at` with positions for each of them). If not, a plan for one head of one batch entry serves
  // any number of them.
  bool depends_on_heads(int64_t q_len, int64_t k_len) const;
  const NodePtr& node() const { return node_; }

  friend Pattern operator&(const Pattern& a, const Pattern& b);
  friend Pattern operator|(const Pattern& a, const Pattern& b);
  friend Pattern operator~(const Pattern& a);
  friend bool operator==(const Pattern& a, const Pattern& b);  // the same expression

 private:
  NodePtr node_;
};

std::ostream& operator<<(std::ostream& stream, const Pattern& pattern);

// Text to pattern. Throws Error(usage) with a caret under the place, what was expected there and,
// for a misspelt name, the nearest one. Length, nesting and numbers are bounded, so untrusted text
// is safe to parse. `allow_files` lets mask(file=m.npy) and the like read files.
Pattern parse(std::string_view text, bool allow_files = false);

// Leaves. Definitions are in docs/patterns.md; q/s is floor division. Leaves made from lengths or
// arrays (documents, tree, grid, and those from arrays below) hold for a fixed number of positions.
// for_head() and plan() refuse any other k_len, or queries at other positions; the error names the
// way out.
Pattern dense();                                    // always
Pattern causal();                                   // k <= q
Pattern window(int64_t left, int64_t right);        // -left <= k - q <= right
Pattern window(int64_t left_and_right);             // window(n, n)
Pattern sinks(int64_t count);                       // k < count
Pattern blocks(int64_t size);                       // q/size == k/size
Pattern prefix(int64_t count);                      // k <= q or k < count
Pattern global(int64_t count);                      // q < count or k < count
Pattern global_at(std::vector<int64_t> positions);  // q or k is one of them
Pattern documents(std::vector<int64_t> lengths);    // q and k in the same document
Pattern tree(std::vector<int64_t> parents);         // k is q or an ancestor; -1: a root
Pattern dilated(int64_t stride);                    // (q - k) % stride == 0
Pattern dilated(int64_t stride, int64_t count);     // ... and |q - k| < stride * count
Pattern strided(int64_t stride);                    // causal & (window(stride-1) | dilated(stride))
Pattern fixed(int64_t stride, int64_t columns);     // causal, own block or the last columns of any
Pattern exponential();                              // q == k or |q - k| is a power of 2
Pattern random(int64_t block, int64_t count,
               int64_t seed);  // count key blocks for each query block
Pattern grid(int64_t height, int64_t width, int64_t row_radius, int64_t column_radius);
Pattern volume(int64_t depth, int64_t height, int64_t width, int64_t depth_radius,
               int64_t row_radius, int64_t column_radius);
// As grid and volume, but near a border the window is shifted inward instead of cut (NATTEN).
Pattern neighborhood(int64_t height, int64_t width, int64_t row_radius, int64_t column_radius);
Pattern volume_neighborhood(int64_t depth, int64_t height, int64_t width, int64_t depth_radius,
                            int64_t row_radius, int64_t column_radius);

// Named compositions.
Pattern streaming(int64_t sinks, int64_t window);     // causal & (window(window-1) | sinks(sinks))
Pattern longformer(int64_t window, int64_t globals);  // window(window/2) | global(globals)
Pattern bigbird(int64_t block, int64_t window, int64_t randoms, int64_t globals, int64_t seed);

// From arrays, which are copied. Rows are positions, as for every pattern: with fewer queries than
// rows, the last query is the last row. If row i is query i and there are fewer rows than keys, set
// Shape::offset to 0.
// BSR: positions i * tile_q and up, tile_q of them, attend to the key tiles
// keys[offsets[i] .. offsets[i+1]).
Pattern tiles(int64_t tile_q, int64_t tile_k, std::vector<int64_t> offsets,
              std::vector<int64_t> keys);
// CSR: the query at position i attends to keys[offsets[i] .. offsets[i+1]).
Pattern csr(std::vector<int64_t> offsets, std::vector<int64_t> keys);
// BSR with partial tiles: tile e is full if bitmap[e] is -1; otherwise bitmap[e] is the index of
// its bitmap. `allowed` holds the bitmaps, one byte per pair, [bitmaps][tile_q][tile_k]; non-zero
// attends.
Pattern bitmaps(int64_t tile_q, int64_t tile_k, std::vector<int64_t> offsets,
                std::vector<int64_t> keys, std::vector<int64_t> bitmap,
                std::span<const uint8_t> allowed);
// One byte per pair, row-major [q_len][k_len]; non-zero attends.
Pattern mask(std::span<const uint8_t> allowed, int64_t q_len, int64_t k_len);
// Any function of positions. Slower to compile than a leaf: it is called for every pair.
Pattern lambda(std::function<bool(Position q, Position k)> allows, std::string name = "lambda");

// One pattern per query head, or per batch entry.
Pattern per_head(std::vector<Pattern> patterns);
Pattern per_batch(std::vector<Pattern> patterns);

// Explicit positions: query i stands at q_positions[i], key j at k_positions[j].
// Each array is [length], [batch, length] or [batch, heads, length], told apart by its size.
// A pattern made for fixed lengths refuses positions past its end. Positions below 0 are outside of
// it: they attend to nothing there.
Pattern at(std::vector<int64_t> q_positions, std::vector<int64_t> k_positions,
           const Pattern& pattern);

// Packed documents: document d holds the next q_lengths[d] queries and the next k_lengths[d] keys.
// The pattern sees positions inside the document, as if it were alone. The lengths must add up to
// q_len and k_len; padding is a document that has queries and no keys.
Pattern packed(std::vector<int64_t> q_lengths, std::vector<int64_t> k_lengths,
               const Pattern& pattern);

// A picture in text: '#' attends, '.' does not. One row a query.
std::string picture(const Pattern& pattern, int64_t q_len, int64_t k_len);
// How many pairs attend, for head 0 of batch entry 0. Counts ranges where it can, not single pairs.
int64_t count_pairs(const Pattern& pattern, int64_t q_len, int64_t k_len);

}  // namespace keyhole
