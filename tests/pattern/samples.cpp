// tests/pattern/samples.cpp
#include "pattern/samples.h"

#include "base/int_math.h"
#include "base/random.h"
#include "pattern/catalog.h"
#include "pattern/node.h"
#include "pattern/smallest_shape.h"

namespace keyhole::test {
namespace {

constexpr Shape kShapes[] = {
    {.q_len = 7, .k_len = 9},
    {.q_len = 9, .k_len = 7},  // the first two queries stand before the first key
    {.q_len = 16, .k_len = 16},
    {.q_len = 5, .k_len = 8, .offset = -7},
    {.q_len = 5, .k_len = 8, .offset = 6},
};

// Nodes answer for any position, so that the laws are tried on lengths that a call may not have:
// what lies outside an array is asked, too.
NodePtr node_of(const Pattern& pattern, const Shape& shape, int64_t batch = 0, int64_t head = 0) {
  return pattern.node()->resolve({shape, batch, head});
}

bool fits(const Pattern& pattern, const Shape& shape) {
  try {
    node_of(pattern, shape);
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) throw;
    return false;
  }
}

// `at` brings its own lengths: those of the table that fit, else the first small ones that do.
std::vector<Shape> shapes_of(const Pattern& pattern) {
  std::vector<Shape> shapes;
  const auto add = [&](const Shape& wanted) {
    Shape shape = smallest_shape(pattern, wanted.q_len, wanted.k_len);
    shape.offset = wanted.offset;
    if (fits(pattern, shape)) shapes.push_back(shape);
  };
  for (const Shape& shape : kShapes) add(shape);
  for (int64_t q_len = 1; q_len <= 16 && shapes.empty(); ++q_len) {
    for (int64_t k_len = 1; k_len <= 16 && shapes.empty(); ++k_len) {
      add({.q_len = q_len, .k_len = k_len});
    }
  }
  KEYHOLE_ASSERT(!shapes.empty(), "no shape fits the sample ", pattern.text());
  return shapes;
}

Pattern random_mask(int64_t q_len, int64_t k_len, int percent) {
  Random random(uint64_t(q_len * 1000 + k_len));
  std::vector<uint8_t> bytes(size_t(q_len * k_len));
  for (uint8_t& byte : bytes) byte = random.chance(percent) ? uint8_t(1 << random.below(8)) : 0;
  return mask(bytes, q_len, k_len);
}

// Chains that jump back and forth: the longest way to the root there is.
Pattern zigzag_tree(int64_t tokens) {
  std::vector<int64_t> parents;
  for (int64_t i = 0; i < tokens; ++i) parents.push_back(i < 2 ? -1 : i - 2);
  return tree(parents);
}

Pattern random_tree(int64_t tokens, uint64_t seed) {
  Random random(seed);
  std::vector<int64_t> parents;
  for (int64_t i = 0; i < tokens; ++i) {
    parents.push_back(random.chance(60) ? i - 1 : random.between(-1, i - 1));
  }
  return tree(parents);
}

}  // namespace

std::vector<Pattern> sample_patterns() {
  std::vector<Pattern> patterns;
  for (const std::string& text : sample_texts()) patterns.push_back(parse(text));
  const Pattern odd =
      lambda([](Position q, Position k) { return floor_mod(q * q + 3 * k, 5) < 2; }, "odd");
  const std::vector<Pattern> more = {
      odd,
      odd & causal(),
      random_mask(6, 8, 50),
      random_mask(12, 5, 90) & causal(),
      csr({0, 3, 3, 7, 8}, {5, 1, 5, 0, 1, 2, 3, 6}),  // unsorted, with duplicates
      ~csr({0, 3, 3, 7, 8}, {5, 1, 5, 0, 1, 2, 3, 6}),
      tiles(3, 2, {0, 2, 2, 5}, {3, 0, 2, 1, 2}),
      zigzag_tree(12),
      random_tree(14, 1),
      random_tree(14, 2) | window(1),
      per_head({odd, random_mask(6, 8, 50) | random_tree(9, 3)}),
      at({3, 1, 4, 1, 5, 9, 2}, {2, 7, 1, 8, 2, 8, 1, 8, 2}, exponential() | documents({3, 4})),
  };
  patterns.insert(patterns.end(), more.begin(), more.end());
  return patterns;
}

std::vector<SampleView> sample_views() {
  std::vector<SampleView> views;
  for (const Pattern& pattern : sample_patterns()) {
    for (const Shape& shape : shapes_of(pattern)) {
      for (int64_t batch = 0; batch < shape.batch; ++batch) {
        for (int64_t head = 0; head < shape.heads; ++head) {
          views.push_back({pattern.text(), shape, node_of(pattern, shape, batch, head)});
        }
      }
    }
  }
  return views;
}

}  // namespace keyhole::test
