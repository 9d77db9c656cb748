// src/pattern/samples.cpp
// Pattern texts for tests, pictures and fuzzers: every catalog example, each with causal, and
// combinations that reach the corners of the grammar and of the parameters.
#include "pattern/catalog.h"

namespace keyhole {

namespace {

constexpr std::string_view kCombinations[] = {
    // operators, nesting and negation
    "causal & window(4)",
    "causal & (window(4) | sinks(2))",
    "causal & window(4) | sinks(2)",
    "window(2) | dilated(3)",
    "window(2) | dilated(3) & causal",
    "~causal",
    "~(causal & window(3))",
    "~(window(2) | global(1))",
    "causal & ~window(2)",
    "causal & ~blocks(4) | sinks(1)",
    "~causal & ~window(1)",
    "~dense",
    "causal & ~sinks(2) & window(6)",
    "(causal | prefix(3)) & (blocks(8) | global(1)) & ~dilated(5)",
    "causal & (blocks(4) | dilated(4) & ~window(3) | sinks(1))",
    "documents(5, 11) & (causal | global(1))",
    "documents(3, 0, 4, 9) & causal & (window(2) | sinks(1))",
    "causal & documents(7, 9) & window(3)",
    "strided(4) | fixed(8, 2)",
    "exponential & causal & ~window(1)",
    "random(4, 1, 1) | window(1)",
    "causal & (random(1, 3, 5) | window(2))",
    "grid(4, 4, 1, 0) | grid(4, 4, 0, 1)",
    "neighborhood(4, 4, 1, 0) & causal",
    "volume(2, 3, 3, 1, 1, 0) | neighborhood(3, 6, 0, 1)",
    "~volume_neighborhood(3, 3, 2, 1, 1, 0)",
    "streaming(1, 3) | global_at(5)",
    "longformer(3, 1) & causal",
    "bigbird(4, 1, 1, 1, 3) & causal",
    "tree(-1, 0, 1, 1, -1, 4) | sinks(1)",
    "global_at(3, 3, 0) & ~causal",
    // heads, batch entries, positions
    "per_head(causal, window(2), dense, sinks(1) | blocks(4))",
    "per_head(causal & window(3), ~causal) & blocks(8)",
    "per_batch(causal, causal & documents(4, 12))",
    "per_batch(per_head(causal, dense), per_head(window(1), blocks(2)))",
    "causal & per_head(window(1), dilated(2))",
    "at(q=[0, 1, 2, 3], k=[3, 2, 1, 0], causal)",
    "at(q=[-2, 7, 7, 100], k=[0, 5, -1, 7, 8], window(2) & causal)",
    "at(q=[0, 2, 4, 6], k=[0, 1, 2, 3, 4, 5, 6], per_head(causal, dense)) | sinks(1)",
    "packed([0, 3, 2, 5], [4, 0, 6, 3], dense)",
    "packed([7], [9], causal & window(2)) | sinks(1)",
    "packed([1, 1, 1, 1, 1], [2, 2, 2, 2, 2], strided(2))",
    "packed([4, 3], [3, 4], per_head(random(2, 1, 3), blocks(2)))",
    "~packed([3, 3], [4, 4], packed([1, 2], [3, 1], prefix(1)))",
    "packed([], [], causal)",
    // arrays
    "mask([[1, 0, 1], [0, 1, 1]]) | sinks(1)",
    "mask([])",
    "csr([0, 0, 2], [1, 3]) & causal",
    "csr([0], [])",
    "tiles(2, 3, [0, 2, 2, 3], [0, 2, 1]) & causal",
    "bitmaps(3, 2, [0, 3, 3, 5], [4, 0, 2, 1, 2], [1, -1, 0, 1, 2], [[1, 0], [0, 0], [1, 1], "
    "[0, 1], [1, 0], [1, 1], [0, 0], [0, 0], [0, 0]]) | sinks(1)",
    "bitmaps(2, 2, [0, 1], [1], [0], [[1, 1], [1, 1]])",
    "bitmaps(1, 1, [0], [], [], [])",
    // parameters at their ends
    "window(0)",
    "window(0, 3)",
    "window(inf, 0)",
    "window(0, inf)",
    "window(1, -1)",
    "window(-2, inf)",
    "window(inf)",
    "window(inf, 2) & ~window(3, inf)",
    "window(1000000000000, 0)",
    "window(2305843009213693950, 1)",
    "sinks(0)",
    "sinks(1000000)",
    "sinks(2305843009213693951)",
    "blocks(1)",
    "blocks(1000000)",
    "blocks(2305843009213693951)",
    "prefix(0)",
    "prefix(1000000)",
    "global(0)",
    "global(1000000)",
    "global_at(0)",
    "global_at(1000000)",
    "documents(1)",
    "documents(0, 0, 1)",
    "documents(1000000, 1)",
    "tree(-1)",
    "tree(-1, -1, -1)",
    "dilated(1)",
    "dilated(1, 1)",
    "dilated(2, 3)",
    "dilated(1000000)",
    "dilated(1000000, 1000000)",
    "strided(1)",
    "strided(1000000)",
    "fixed(1, 1)",
    "fixed(4, 4)",
    "fixed(1000000, 1)",
    "random(1, 0, 0)",
    "random(1, 1, -1)",
    "random(16, 100, 9223372036854775807)",
    "random(3, 2, -9223372036854775808)",
    "grid(1, 1, 0, 0)",
    "grid(3, 5, 1, 2)",
    "grid(2, 8, 1000, 1000)",
    "neighborhood(1, 1, 0, 0)",
    "neighborhood(1, 16, 0, 2)",
    "neighborhood(3, 5, 1, 2)",
    "neighborhood(5, 3, 2, 0)",
    "neighborhood(2, 8, 1000, 1)",
    "volume(2, 3, 3, 1, 1, 1)",
    "volume(3, 1, 6, 1, 0, 2)",
    "volume(2, 2, 4, 0, 1000, 1000)",
    "volume_neighborhood(2, 3, 3, 0, 1, 1)",
    "volume_neighborhood(5, 2, 2, 1, 0, 0)",
    "streaming(0, 1)",
    "streaming(16, 64)",
    "longformer(0, 0)",
    "longformer(1, 2)",
    "bigbird(1, 1, 0, 0, 0)",
    "bigbird(64, 3, 3, 2, 42)",
};

}  // namespace

std::vector<std::string> sample_texts() {
  std::vector<std::string> texts;
  for (const CatalogEntry& entry : catalog()) texts.emplace_back(entry.example);
  for (const CatalogEntry& entry : catalog()) {
    if (entry.name != "causal") texts.push_back("causal & " + std::string(entry.example));
  }
  texts.insert(texts.end(), std::begin(kCombinations), std::end(kCombinations));
  return texts;
}

}  // namespace keyhole
