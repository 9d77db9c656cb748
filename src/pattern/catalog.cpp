// src/pattern/catalog.cpp
// The table of patterns, one row each, in the order of the documentation. Rows hold what a user may
// pass; what the numbers mean together (columns <= stride) is checked by the pattern itself.
#include "pattern/catalog.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace keyhole {

namespace {

using Values = std::span<Value>;
using List = std::vector<int64_t>;
using Kind = ParameterKind;

int64_t number(const Value& value) { return std::get<int64_t>(value); }
bool is_given(const Value& value) { return value.index() != 0; }
List list(Value& value) { return std::move(std::get<List>(value)); }
std::vector<Pattern> patterns(Value& value) {
  return std::move(std::get<std::vector<Pattern>>(value));
}

Parameter integer(std::string_view name, int64_t least) { return {.name = name, .least = least}; }
Parameter or_inf(Parameter parameter) {
  parameter.may_be_unbounded = true;
  return parameter;
}
Parameter optional(Parameter parameter) {
  parameter.is_optional = true;
  return parameter;
}
Parameter seed() {  // any 64 bits
  return {.name = "seed",
          .least = std::numeric_limits<int64_t>::min(),
          .most = std::numeric_limits<int64_t>::max()};
}
Parameter integers(std::string_view name, int64_t least) {
  return {.name = name, .kind = Kind::integers, .least = least, .file_name = "file"};
}
Parameter array(std::string_view name) { return {.name = name, .kind = Kind::array}; }
Parameter positions(std::string_view name) {  // [length], [batch, length], [batch, heads, length]
  return {.name = name, .kind = Kind::array, .least = -kUnbounded, .max_dims = 3};
}

const std::vector<CatalogEntry>& table() {
  static const std::vector<CatalogEntry> entries = {
      {.name = "dense",
       .definition = "always",
       .meaning = "Every query sees every key: plain attention.",
       .example = "dense",
       .complexity = "L^2",
       .reach = "all",
       .make = [](Values) { return dense(); }},

      {.name = "causal",
       .definition = "k <= q",
       .meaning = "A token sees itself and what came before: language models.",
       .example = "causal",
       .complexity = "L^2 / 2",
       .reach = "all earlier tokens",
       .make = [](Values) { return causal(); }},

      {.name = "window",
       .parameters = {or_inf(integer("left", -kUnbounded)),
                      optional(or_inf(integer("right", -kUnbounded)))},
       .definition = "-left <= k - q <= right",
       .meaning = "Neighbours only, both ends included. right equals left unless it is given; inf "
                  "leaves a side open.",
       .example = "window(3, 1)",
       .complexity = "L * (left + right + 1)",
       .reach = "none",
       .make = [](Values v) { return window(number(v[0]), number(v[is_given(v[1]) ? 1 : 0])); }},

      {.name = "sinks",
       .parameters = {integer("count", 0)},
       .definition = "k < count",
       .meaning = "Every query sees the first tokens, which trained models use as attention sinks.",
       .example = "sinks(2)",
       .complexity = "L * count",
       .reach = "first count tokens",
       .make = [](Values v) { return sinks(number(v[0])); }},

      {.name = "blocks",
       .parameters = {integer("size", 1)},
       .definition = "q/size == k/size",
       .meaning = "The sequence is cut into equal blocks, and each block attends to itself.",
       .example = "blocks(4)",
       .complexity = "L * size",
       .reach = "none",
       .make = [](Values v) { return blocks(number(v[0])); }},

      {.name = "prefix",
       .parameters = {integer("count", 0)},
       .definition = "k <= q or k < count",
       .meaning = "Causal, but every token sees all of a prompt of count tokens: prefix language "
                  "models.",
       .example = "prefix(5)",
       .complexity = "L^2 / 2 + count^2 / 2",
       .reach = "all earlier tokens",
       .make = [](Values v) { return prefix(number(v[0])); }},

      {.name = "global",
       .parameters = {integer("count", 0)},
       .definition = "q < count or k < count",
       .meaning = "The first tokens see all tokens, and all tokens see them.",
       .example = "global(2)",
       .complexity = "2 * L * count",
       .reach = "first count tokens",
       .make = [](Values v) { return global(number(v[0])); }},

      {.name = "global_at",
       .parameters = {integers("positions", -kUnbounded)},
       .definition = "q or k is one of positions",
       .meaning = "Chosen tokens, such as separators, see all tokens, and all tokens see them.",
       .example = "global_at(0, 7)",
       .complexity = "2 * L * positions",
       .reach = "the chosen tokens",
       .make = [](Values v) { return global_at(list(v[0])); }},

      {.name = "documents",
       .parameters = {integers("lengths", 0)},
       .definition = "q and k in the same document",
       .meaning =
           "Documents of the given lengths packed into one sequence; each document attends only to "
           "itself. The lengths add up to k_len.",
       .example = "documents(5, 3, 8)",
       .complexity = "sum of lengths^2",
       .reach = "none",
       .make = [](Values v) { return documents(list(v[0])); }},

      {.name = "tree",
       .parameters = {integers("parents", -1)},
       .definition = "k is q or an ancestor of q",
       .meaning = "A token sees the path to its root (parent -1): speculative decoding over a tree "
                  "of drafts. There are k_len parents.",
       .example = "tree(-1, 0, 0, 1, 1, 2, 2, 3)",
       .example_q_len = 8,
       .example_k_len = 8,
       .complexity = "L * depth",
       .reach = "the ancestors",
       .make = [](Values v) { return tree(list(v[0])); }},

      {.name = "dilated",
       .parameters = {integer("stride", 1), optional(integer("count", 0))},
       .definition = "(q - k) % stride == 0 and, with count, |q - k| < stride * count",
       .meaning = "Every stride-th token, count of them on each side when count is given.",
       .example = "dilated(3)",
       .complexity = "L^2 / stride, or L * (2 * count - 1)",
       .reach = "every stride-th token",
       .make =
           [](Values v) {
             return is_given(v[1]) ? dilated(number(v[0]), number(v[1])) : dilated(number(v[0]));
           }},

      {.name = "strided",
       .parameters = {integer("stride", 1)},
       .definition = "k <= q and (q - k < stride or (q - k) % stride == 0)",
       .meaning = "The last stride tokens and every stride-th before them (Sparse Transformers).",
       .example = "strided(4)",
       .complexity = "L * (stride + L / (2 * stride))",
       .reach = "every stride-th earlier token",
       .make = [](Values v) { return strided(number(v[0])); }},

      {.name = "fixed",
       .parameters = {integer("stride", 1), integer("columns", 1)},
       .definition = "k <= q and (q/stride == k/stride or k % stride >= stride - columns)",
       .meaning =
           "A token sees its own block so far, and the last columns of every earlier block, as its "
           "summary (Sparse Transformers).",
       .example = "fixed(4, 1)",
       .complexity = "L * (stride + columns * L / stride) / 2",
       .reach = "last columns of every earlier block",
       .make = [](Values v) { return fixed(number(v[0]), number(v[1])); }},

      {.name = "exponential",
       .definition = "q == k or |q - k| is a power of 2",
       .meaning = "Distances 0, 1, 2, 4, 8, ...: about log2(L) layers connect any two tokens.",
       .example = "exponential",
       .complexity = "L * 2 log2 L",
       .reach = "tokens at distances 2^n",
       .make = [](Values) { return exponential(); }},

      {.name = "random",
       .parameters = {integer("block", 1), integer("count", 0), seed()},
       .definition = "k/block among count distinct blocks drawn for q/block",
       .meaning =
           "Random shortcuts, equal for all heads and on every machine; block 1 draws tokens.",
       .example = "random(2, 2, 7)",
       .complexity = "L * block * count",
       .reach = "count random blocks",
       .make = [](Values v) { return random(number(v[0]), number(v[1]), number(v[2])); }},

      {.name = "grid",
       .parameters = {integer("height", 1), integer("width", 1), integer("row_radius", 0),
                      integer("column_radius", 0)},
       .definition = "q and k are pixels of one image, at most row_radius rows and column_radius "
                     "columns apart",
       .meaning =
           "A neighbourhood in two dimensions, for images read row by row; height x width is "
           "k_len.",
       .example = "grid(4, 4, 1, 1)",
       .complexity = "L * (2 * row_radius + 1) * (2 * column_radius + 1)",
       .reach = "none",
       .make =
           [](Values v) { return grid(number(v[0]), number(v[1]), number(v[2]), number(v[3])); }},

      {.name = "neighborhood",
       .parameters = {integer("height", 1), integer("width", 1), integer("row_radius", 0),
                      integer("column_radius", 0)},
       .definition = "k is in the window of 2 * row_radius + 1 rows and 2 * column_radius + 1 "
                     "columns around q, shifted so that it lies inside the image",
       .meaning =
           "An image neighbourhood of constant size (NATTEN). At a border the window is shifted, "
           "not cut.",
       .example = "neighborhood(4, 4, 1, 1)",
       .complexity = "L * (2 * row_radius + 1) * (2 * column_radius + 1)",
       .reach = "none",
       .make =
           [](Values v) {
             return neighborhood(number(v[0]), number(v[1]), number(v[2]), number(v[3]));
           }},

      {.name = "volume",
       .parameters = {integer("depth", 1), integer("height", 1), integer("width", 1),
                      integer("depth_radius", 0), integer("row_radius", 0),
                      integer("column_radius", 0)},
       .definition = "q and k are points of one volume, at most depth_radius planes, row_radius "
                     "rows and column_radius columns apart",
       .meaning = "A neighbourhood in three dimensions, for volumes and videos.",
       .example = "volume(2, 2, 4, 1, 0, 1)",
       .complexity = "L * (2 * depth_radius + 1) * (2 * row_radius + 1) * (2 * column_radius + 1)",
       .reach = "none",
       .make =
           [](Values v) {
             return volume(number(v[0]), number(v[1]), number(v[2]), number(v[3]), number(v[4]),
                           number(v[5]));
           }},

      {.name = "volume_neighborhood",
       .parameters = {integer("depth", 1), integer("height", 1), integer("width", 1),
                      integer("depth_radius", 0), integer("row_radius", 0),
                      integer("column_radius", 0)},
       .definition =
           "k is in the window of 2 * radius + 1 points along each axis around q, shifted "
           "so that it lies inside the volume",
       .meaning = "As neighborhood, in three dimensions.",
       .example = "volume_neighborhood(4, 2, 2, 1, 0, 1)",
       .complexity = "L * (2 * depth_radius + 1) * (2 * row_radius + 1) * (2 * column_radius + 1)",
       .reach = "none",
       .make =
           [](Values v) {
             return volume_neighborhood(number(v[0]), number(v[1]), number(v[2]), number(v[3]),
                                        number(v[4]), number(v[5]));
           }},

      {.name = "streaming",
       .parameters = {integer("sinks", 0), integer("window", 1)},
       .definition = "k <= q and (q - k < window or k < sinks)",
       .meaning =
           "A token sees the last window tokens, itself among them, and the first few: endless "
           "generation (StreamingLLM).",
       .example = "streaming(2, 4)",
       .complexity = "L * (sinks + window)",
       .reach = "first sinks tokens",
       .is_composition = true,
       .make = [](Values v) { return streaming(number(v[0]), number(v[1])); }},

      {.name = "longformer",
       .parameters = {integer("window", 0), integer("globals", 0)},
       .definition = "|q - k| <= window/2 or q < globals or k < globals",
       .meaning =
           "A window, and a few global tokens at the beginning: long documents (Longformer).",
       .example = "longformer(4, 1)",
       .complexity = "L * (window + 1 + 2 * globals)",
       .reach = "first globals tokens",
       .is_composition = true,
       .make = [](Values v) { return longformer(number(v[0]), number(v[1])); }},

      {.name = "bigbird",
       .parameters = {integer("block", 1), integer("window", 1), integer("randoms", 0),
                      integer("globals", 0), seed()},
       .definition =
           "|q/block - k/block| <= (window-1)/2 or q/block < globals or k/block < globals or "
           "random(block, randoms, seed)",
       .meaning = "Window, global and random blocks together; window is odd (BigBird).",
       .example = "bigbird(2, 3, 1, 1, 7)",
       .complexity = "L * block * (window + randoms + 2 * globals)",
       .reach = "first globals blocks, random blocks",
       .is_composition = true,
       .make =
           [](Values v) {
             return bigbird(number(v[0]), number(v[1]), number(v[2]), number(v[3]), number(v[4]));
           }},

      {.name = "tiles",
       .parameters = {integer("tile_q", 1), integer("tile_k", 1), array("offsets"), array("keys")},
       .definition = "k/tile_k is in keys[offsets[i] .. offsets[i+1]) with i = q/tile_q",
       .meaning = "Tiles chosen by you, as block-sparse rows (BSR). Row 0 is for the queries at "
                  "positions 0 to tile_q - 1; the last query has the last position.",
       .example = "tiles(4, 4, [0, 1, 3, 4, 6], [0, 0, 1, 2, 0, 3])",
       .complexity = "tile_q * tile_k * keys",
       .reach = "as given",
       .prints_as_written = true,
       .make = [](Values v) { return tiles(number(v[0]), number(v[1]), list(v[2]), list(v[3])); }},

      {.name = "bitmaps",
       .parameters = {integer("tile_q", 1),
                      integer("tile_k", 1),
                      array("offsets"),
                      array("keys"),
                      {.name = "bitmap", .kind = Kind::array, .least = -1},
                      {.name = "rows", .kind = Kind::rows, .most = 1}},
       .definition = "k/tile_k is keys[e], e in offsets[i] .. offsets[i+1] with i = q/tile_q, and "
                     "bitmap[e] is -1 or has the pair",
       .meaning = "Tiles chosen by you, full or with a bitmap: block masks of other libraries. Row "
                  "0 is for the queries at positions 0 to tile_q - 1, as in tiles.",
       .example = "bitmaps(4, 4, [0, 1, 3, 4], [0, 0, 1, 2], [0, -1, 0, 0], "
                  "[[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]])",
       .example_q_len = 12,
       .example_k_len = 12,
       .complexity = "tile_q * tile_k * keys",
       .reach = "as given",
       .prints_as_written = true,
       .make =
           [](Values v) {
             const auto& rows = std::get<MaskRows>(v[5]);
             const int64_t tile_k = number(v[1]);
             KEYHOLE_CHECK(rows.allowed.empty() || rows.k_len == tile_k, "bitmaps: rows have ",
                           rows.k_len, " pairs; tile_k is ", tile_k);
             return bitmaps(number(v[0]), tile_k, list(v[2]), list(v[3]), list(v[4]), rows.allowed);
           }},

      {.name = "csr",
       .parameters = {array("offsets"), array("keys")},
       .definition = "k is in keys[offsets[q] .. offsets[q+1])",
       .meaning = "Pairs chosen by you, as compressed sparse rows (CSR). Row 0 is for the query at "
                  "position 0; the last query has the last position.",
       .example = "csr([0, 1, 3, 5, 8], [0, 0, 1, 0, 2, 0, 1, 3])",
       .example_q_len = 4,
       .example_k_len = 4,
       .complexity = "keys",
       .reach = "as given",
       .prints_as_written = true,
       .make = [](Values v) { return csr(list(v[0]), list(v[1])); }},

      {.name = "mask",
       .parameters = {{.name = "rows", .kind = Kind::rows, .most = 1, .file_name = "file"}},
       .definition = "rows[q][k] is not 0",
       .meaning = "Pairs chosen by you, as a boolean matrix. Row 0 is for the query at position 0; "
                  "the last query has the last position.",
       .example = "mask([[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [1, 0, 0, 1]])",
       .example_q_len = 4,
       .example_k_len = 4,
       .complexity = "ones in the matrix",
       .reach = "as given",
       .prints_as_written = true,
       .make =
           [](Values v) {
             const auto& rows = std::get<MaskRows>(v[0]);
             return mask(rows.allowed, rows.q_len, rows.k_len);
           }},

      {.name = "per_head",
       .parameters = {{.name = "patterns", .kind = Kind::patterns}},
       .definition = "the pattern of the query's head, counted from 0",
       .meaning = "Each query head has its own pattern.",
       .example = "per_head(causal, window(2))",
       .complexity = "mean of the patterns",
       .reach = "of each pattern",
       .is_composition = true,
       .make = [](Values v) { return per_head(patterns(v[0])); }},

      {.name = "per_batch",
       .parameters = {{.name = "patterns", .kind = Kind::patterns}},
       .definition = "the pattern of the batch entry, counted from 0",
       .meaning = "Each batch entry has its own pattern.",
       .example = "per_batch(causal & documents(5, 11), causal & documents(9, 7))",
       .complexity = "mean of the patterns",
       .reach = "of each pattern",
       .is_composition = true,
       .make = [](Values v) { return per_batch(patterns(v[0])); }},

      {.name = "at",
       .parameters = {positions("q"), positions("k"), {.name = "pattern", .kind = Kind::pattern}},
       .definition = "pattern at positions q[query], k[key]",
       .meaning = "Explicit positions, for tokens that are reordered, gathered or shared.",
       .example = "at(q=[4, 0, 5, 1], k=[0, 1, 2, 3, 4, 5], causal)",
       .example_q_len = 4,
       .example_k_len = 6,
       .complexity = "that of pattern",
       .reach = "of pattern",
       .is_composition = true,
       .make = [](Values v) { return at(list(v[0]), list(v[1]), std::get<Pattern>(v[2])); }},

      {.name = "packed",
       .parameters = {array("q_lengths"),
                      array("k_lengths"),
                      {.name = "pattern", .kind = Kind::pattern}},
       .definition = "query and key in the same document, and pattern at their positions inside it",
       .meaning = "Documents packed into one sequence, each with its own number of queries and of "
                  "keys: ragged batches.",
       .example = "packed([5, 2, 6], [5, 7, 4], causal & (window(3) | sinks(1)))",
       .example_q_len = 13,
       .example_k_len = 16,
       .complexity = "that of pattern for each document",
       .reach = "of pattern, inside a document",
       .is_composition = true,
       .make = [](Values v) { return packed(list(v[0]), list(v[1]), std::get<Pattern>(v[2])); }},
  };
  return entries;
}

}  // namespace

std::span<const CatalogEntry> catalog() { return table(); }

const CatalogEntry* find_in_catalog(std::string_view name) {
  const auto found = std::ranges::find(table(), name, &CatalogEntry::name);
  return found == table().end() ? nullptr : &*found;
}

std::string signature_of(const CatalogEntry& entry) {
  std::string text(entry.name);
  std::string closing;
  for (const Parameter& parameter : entry.parameters) {
    const bool is_first = &parameter == entry.parameters.data();
    text += is_first ? "(" : parameter.is_optional ? "[, " : ", ";
    if (parameter.is_optional) closing += "]";
    text += parameter.name;
    if (parameter.kind == Kind::integers || parameter.kind == Kind::patterns) text += "...";
  }
  return entry.parameters.empty() ? text : text + closing + ")";
}

}  // namespace keyhole
