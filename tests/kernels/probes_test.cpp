// tests/kernels/probes_test.cpp
// One wrong key in 65,536 is far below any tolerance of values. Two probes see it at any length:
//   count  q = 0, so that exp(lse) is the number of keys a row may see;
//   spike  each row's query points at one key at the edge of what it may see: the output is that
//   key's
//          value when the key is allowed, and has nothing of it when it is not.
#include <gtest/gtest.h>

#include <cmath>
#include <iostream>
#include <set>

#include "base/random.h"
#include "keyhole/attention.h"
#include "pattern/catalog.h"
#include "pattern/smallest_shape.h"
#include "support/inputs.h"
#include "support/scale.h"

namespace keyhole::test {
namespace {

constexpr int64_t kKeys = 65536;
constexpr int64_t kQueries = 66;  // one more than the largest cpu tile, and a bit

// Every catalog pattern at a size that reaches across 65,536 keys, alone and composed.
constexpr const char* kLongPatterns[] = {
    "dense",
    "causal",
    "window(4095)",
    "window(1000, 30000)",
    "causal & window(32767)",
    "sinks(40001)",
    "blocks(4096)",
    "causal & blocks(3000)",
    "prefix(20011)",
    "global(100)",
    "causal & global_at(3, 64, 40000, 65535)",
    "documents(100, 0, 30000, 2345, 33091) & causal",
    "dilated(64)",
    "dilated(7, 1000)",
    "strided(128)",
    "strided(1000)",
    "fixed(128, 8)",
    "exponential",
    "random(64, 16, 7)",
    "random(1, 128, 7)",
    "grid(256, 256, 3, 5)",
    "neighborhood(256, 256, 3, 5)",
    "volume_neighborhood(16, 64, 64, 1, 3, 3)",
    "streaming(16, 64)",
    "streaming(4, 4096)",
    "longformer(512, 4)",
    "bigbird(64, 3, 3, 2, 11)",
    "~(causal & window(4095))",
    "causal & (window(1023) | sinks(4)) | dilated(512)",
    "per_head(causal, window(100))",
    "per_batch(streaming(4, 100), dilated(3))",
    "packed([3, 40, 0, 23], [100, 31000, 2345, 32091], causal & (window(999) | sinks(4)))",
};
// Catalog patterns that are arrays or trees: their own size bounds them, the fuzzer has them.
const std::set<std::string> kBoundByTheirArrays = {"tree", "tiles", "bitmaps", "csr", "mask", "at"};

struct Run {
  std::vector<float> q, k, v, out, lse;
  Shape shape;
  int64_t head_dim, v_head_dim;

  Run(const Shape& the_shape, int64_t d, int64_t vd)
      : shape(the_shape), head_dim(d), v_head_dim(vd) {
    const int64_t heads = shape.batch * shape.heads;
    q.resize(size_t(heads * shape.q_len * d));
    k.resize(size_t(shape.batch * shape.k_len * d));
    v.resize(size_t(shape.batch * shape.k_len * vd));
    out.resize(size_t(heads * shape.q_len * vd));
    lse.resize(size_t(heads * shape.q_len));
  }
  void forward(const Plan& plan) {
    attention_forward(
        TensorView(q.data(), DType::f32, {shape.batch, shape.heads, shape.q_len, head_dim}),
        TensorView(k.data(), DType::f32, {shape.batch, 1, shape.k_len, head_dim}),
        TensorView(v.data(), DType::f32, {shape.batch, 1, shape.k_len, v_head_dim}), plan,
        TensorView(out.data(), DType::f32, {shape.batch, shape.heads, shape.q_len, v_head_dim}),
        TensorView(lse.data(), DType::f32, {shape.batch, shape.heads, shape.q_len}));
  }
};

// Queries at the beginning, in the middle and at the end of the keys.
std::vector<Shape> shapes_for(const Pattern& pattern) {
  std::vector<Shape> shapes;
  for (const int64_t offset : {int64_t{0}, kKeys / 2 - 13, kKeys - kQueries}) {
    Shape shape = smallest_shape(pattern, kQueries, kKeys);
    shape.offset = offset;
    shapes.push_back(shape);
  }
  return shapes;
}

void count_probe(const Plan& plan, const AllowedPairs& allowed, const std::string& text) {
  Run run(allowed.shape(), 1, 1);
  Random random(5);
  for (float& value : run.k) value = float(random.quick_normal());
  run.forward(plan);
  const Shape& shape = allowed.shape();
  for (int64_t row = 0; row < int64_t(run.lse.size()); ++row) {
    const int64_t query = row % shape.q_len, head = row / shape.q_len % shape.heads;
    const int64_t want = allowed.count(row / shape.q_len / shape.heads, head, query);
    const double counted = std::exp(double(run.lse[size_t(row)]));
    EXPECT_EQ(std::llround(counted), want) << text << " offset " << *shape.offset << " row " << row;
  }
}

// Keys next to a change of the mask, at the ends, and at the edges of 64-wide tiles.
std::vector<int64_t> edge_keys(const uint8_t* row, Random& random) {
  std::vector<int64_t> edges = {0, kKeys - 1};
  for (int64_t key = 1; key < kKeys; ++key) {
    if (row[key] != row[key - 1]) edges.insert(edges.end(), {key - 1, key});
  }
  for (int i = 0; i < 4; ++i) {
    const int64_t edge = 64 * random.between(1, kKeys / 64 - 1);
    edges.insert(edges.end(), {edge - 1, edge});
  }
  return edges;
}

void spike_probe(const Plan& plan, const AllowedPairs& allowed, const std::string& text,
                 uint64_t seed) {
  // Keys are random signs in 64 dimensions; a query is twice its target's signs. The target scores
  // 16, all 65,536 others together about as much as one key of score 13.
  constexpr int64_t kDim = 64, kValueDim = 16;
  const Shape& shape = allowed.shape();
  Run run(shape, kDim, kValueDim);
  Random random(seed);
  for (float& value : run.k) value = random.chance(50) ? 1.f : -1.f;
  for (float& value : run.v) value = random.chance(50) ? 1.f : -1.f;
  std::vector<int64_t> targets;
  for (int64_t row = 0; row < int64_t(run.lse.size()); ++row) {
    const int64_t batch = row / shape.q_len / shape.heads;
    const uint8_t* may_see = allowed.row(batch, row / shape.q_len % shape.heads, row % shape.q_len);
    targets.push_back(random.pick(edge_keys(may_see, random)));
    const float* key = run.k.data() + (batch * kKeys + targets.back()) * kDim;
    for (int64_t x = 0; x < kDim; ++x) run.q[size_t(row * kDim + x)] = 2 * key[x];
  }
  run.forward(plan);
  for (int64_t row = 0; row < int64_t(run.lse.size()); ++row) {
    const int64_t batch = row / shape.q_len / shape.heads, target = targets[size_t(row)];
    const float* value = run.v.data() + (batch * kKeys + target) * kValueDim;
    double share = 0;  // about the target's weight
    for (int64_t x = 0; x < kValueDim; ++x) {
      share += double(run.out[size_t(row * kValueDim + x)] * value[x]) / kValueDim;
    }
    const bool is_allowed =
        allowed(batch, row / shape.q_len % shape.heads, row % shape.q_len, target);
    // Without the target the rest decides; with few keys left they may resemble it by chance, so
    // the exact comparison is by lse: the target alone would make it 16.
    const double lse = run.lse[size_t(row)];
    if (is_allowed) {
      EXPECT_GT(share, 0.5) << text << " offset " << *shape.offset << " row " << row << " key "
                            << target;
      EXPECT_GE(lse, 15.99) << text << " row " << row << " key " << target;
    } else {
      EXPECT_LT(lse, 15.5) << text << " offset " << *shape.offset << " row " << row << " key "
                           << target;
    }
  }
}

TEST(Probes, TheLongPatternsNameEveryCatalogPattern) {
  for (const CatalogEntry& entry : catalog()) {
    if (kBoundByTheirArrays.count(std::string(entry.name))) continue;
    bool is_named = false;
    for (const char* text : kLongPatterns) {
      is_named = is_named || std::string(text).find(entry.name) != std::string::npos;
    }
    EXPECT_TRUE(is_named) << entry.name << " is missing in kLongPatterns";
  }
}

TEST(Probes, CountAndSpikeAt65536Keys) {
  int64_t rows = 0, patterns = 0;
  uint64_t seed = 0;
  const size_t step = scaled(100) >= 100 ? 1 : 5;  // sanitizers are slow
  for (size_t i = 0; i < std::size(kLongPatterns); i += step, ++patterns) {
    const char* text = kLongPatterns[i];
    const Pattern pattern = parse(text);
    for (const Shape& shape : shapes_for(pattern)) {
      const AllowedPairs allowed(pattern, shape);
      const Plan made = plan(pattern, shape);
      count_probe(made, allowed, text);
      spike_probe(made, allowed, text, ++seed);
      rows += 2 * shape.batch * shape.heads * shape.q_len;
      if (HasFailure()) return;
    }
  }
  std::cout << patterns << " patterns, " << rows << " rows of " << kKeys << " keys\n";
}

}  // namespace
}  // namespace keyhole::test
